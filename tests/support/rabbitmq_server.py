# SPDX-License-Identifier: Apache-2.0
"""RabbitMQ nodes of the test's own: one, or a cluster on loopback, with a name service (epmd), a
cookie and folders of their own, and a control that queries a node in milliseconds, where rabbitmqctl
would start a virtual machine for each query."""
import contextlib
import json
import os
import re
import secrets
import select
import subprocess
from pathlib import Path

from sandbox import START_S, Missing, free_port, identity, listens, wait_until
from process import Process

SERVER = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
EMULATOR = "+S 2:2 +sbwt none +sbwtdcpu none +sbwtdio none -kernel inet_dist_use_interface {127,0,0,1}"
# One expression per line in, one answer per line out. It runs inside the node.
CONTROL = """
Node = list_to_atom(os:getenv("SEMEL_NODE")),
Answer = fun(Text) ->
    {ok, Tokens, _} = erl_scan:string(Text),
    {ok, Expressions} = erl_parse:parse_exprs(Tokens),
    case rpc:call(Node, erl_eval, exprs, [Expressions, []], 60000) of
        {value, Value, _} -> io:format("ok ~0p~n", [Value]);
        {badrpc, Why} -> io:format("error ~0p~n", [Why])
    end
end,
Loop = fun Next() -> case io:get_line("") of eof -> halt(); Line -> Answer(Line), Next() end end,
Loop().
"""


class NameService:
    """epmd, in the foreground, so that it ends with us."""

    def __init__(self, sandbox):
        self.sandbox, self.port = sandbox, free_port()
        self.folder = sandbox.make_folder(f"erlang-{self.port}", "rabbitmq")
        cookie, who = self.folder / ".erlang.cookie", identity("rabbitmq")
        cookie.write_text(secrets.token_hex(10))
        cookie.chmod(0o400)
        if who:
            os.chown(cookie, who["user"], who["group"])
        self.child = sandbox.start(["epmd", "-port", self.port, "-address", "127.0.0.1"], "rabbitmq",
                                sandbox.folder / f"epmd-{self.port}.log", self.environment())
        wait_until(lambda: listens(self.port), START_S, "epmd listens")
        sandbox.keep(self)

    def environment(self):
        return {"HOME": str(self.folder), "ERL_EPMD_PORT": str(self.port), "ERL_EPMD_ADDRESS": "127.0.0.1",
                "ERL_CRASH_DUMP": "/dev/null"}

    def close(self):
        self.child.kill()
        self.child.wait()


class Control:
    """Queries one node. Can also be opened by another process than the one that started the node."""

    def __init__(self, node, environment):
        words = ["erl", "-noshell", "-hidden", "-sname", f"control-{secrets.token_hex(4)}@localhost", "-kernel",
                 "inet_dist_use_interface", "{127,0,0,1}", "-eval", CONTROL]
        self.child = subprocess.Popen(words, env={**environment, "SEMEL_NODE": node}, stdin=subprocess.PIPE, text=True,
                                      stdout=subprocess.PIPE, start_new_session=True, **identity("rabbitmq"), cwd="/")

    def ask(self, expression):
        self.child.stdin.write(" ".join(expression.split()).rstrip(".") + ".\n")
        self.child.stdin.flush()
        ready, _, _ = select.select([self.child.stdout], [], [], 90)
        line = self.child.stdout.readline() if ready else ""
        word, _, answer = line.strip().partition(" ")
        if word != "ok":
            raise RuntimeError(f"{expression}: {answer or 'the node does not answer'}")
        return answer

    def close(self):
        self.child.kill()
        self.child.wait()
        self.child.stdin.close()
        self.child.stdout.close()


def binary(text):
    return f"<<{json.dumps(text)}>>"


class RabbitMQ(Process):
    """One node. What is asked of it is asked of its cluster."""

    def __init__(self, sandbox, names=None, name="rabbit", certificates=None, peers=(), settings=""):
        if not SERVER.exists():
            raise Missing("RabbitMQ is not installed")
        self.sandbox, self.names = sandbox, names or NameService(sandbox)
        self.node = f"{name}-{secrets.token_hex(4)}@localhost"
        self.folder = sandbox.make_folder(name, "rabbitmq")
        self.log = sandbox.folder / f"{name}.log"
        self.port, self.tls_port, self.dist_port = free_port(), free_port(), free_port()
        self.child, self.asked = None, None
        self.write("enabled_plugins", "[].\n")
        self.write("rabbitmq-env.conf", "")
        self.write("rabbitmq.conf", self.configuration(certificates, peers) + settings)
        sandbox.keep(self)

    def write(self, name, text):
        path, who = self.folder / name, identity("rabbitmq")
        path.write_text(text)
        if who:
            os.chown(path, who["user"], who["group"])

    def configuration(self, certificates, peers):
        lines = [f"listeners.tcp.1 = 127.0.0.1:{self.port}", "log.file.level = warning", "disk_free_limit.absolute = 10MB",
                 "raft.wal_max_size_bytes = 33554432", "vm_memory_high_watermark.relative = 0.6"]
        if certificates:
            for path in (certificates.authority, certificates.certificate, certificates.key):
                self.write(path.name, path.read_text())
            lines += [f"listeners.ssl.1 = 127.0.0.1:{self.tls_port}",
                      f"ssl_options.cacertfile = {self.folder / certificates.authority.name}",
                      f"ssl_options.certfile = {self.folder / certificates.certificate.name}",
                      f"ssl_options.keyfile = {self.folder / certificates.key.name}", "ssl_options.verify = verify_none"]
        if peers:
            lines.append("cluster_formation.peer_discovery_backend = classic_config")
            lines += [f"cluster_formation.classic_config.nodes.{number} = {peer}" for number, peer in enumerate(peers, 1)]
        return "\n".join(lines) + "\n"

    def environment(self):
        return {
            **self.names.environment(), "RUNNING_UNDER_SYSTEMD": "true",  # no shell between us and the node
            "RABBITMQ_NODENAME": self.node, "RABBITMQ_NODE_PORT": str(self.port), "RABBITMQ_DIST_PORT": str(self.dist_port),
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1", "RABBITMQ_MNESIA_BASE": str(self.folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(self.folder / "log"), "RABBITMQ_PID_FILE": str(self.folder / "pid"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.folder / "enabled_plugins"),
            "RABBITMQ_CONFIG_FILE": str(self.folder / "rabbitmq.conf"),
            "RABBITMQ_CONF_ENV_FILE": str(self.folder / "rabbitmq-env.conf"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": EMULATOR,
        }

    def url(self, vhost="", user="guest:guest", port=None, scheme="amqp"):
        return f"{scheme}://{user}@127.0.0.1:{port or self.port}/{vhost}"

    # ---- start and stop ----------------------------------------------------------------------------------

    def start(self, wait=True):
        self.child = self.sandbox.start([SERVER], "rabbitmq", self.log, self.environment(), cwd=self.folder)
        if wait:
            self.wait()
        return self

    def wait(self):
        wait_until(self.answers, START_S, f"{self.node} answers")
        wait_until(self.is_up, START_S, f"{self.node} is up")

    def answers(self):
        if self.child.poll() is not None:
            raise RuntimeError(f"RabbitMQ ended with {self.child.returncode}\n{self.log.read_text()[-3000:]}")
        return listens(self.port)

    def is_up(self):
        try:
            return self.ask("rabbit:is_running()") == "true"
        except RuntimeError:
            return False

    def close(self):
        if self.asked:
            self.asked.close()
            self.asked = None
        super().close()

    # ---- what an administrator does --------------------------------------------------------------

    def ask(self, expression):
        if not self.asked:
            self.asked = Control(self.node, {**self.sandbox.environment(), **self.names.environment()})
        return self.asked.ask(expression)

    def endpoints(self):
        """What another process needs to ask this node."""
        return {"node": self.node, "port": self.port, "tls_port": self.tls_port,
                "environment": {**self.sandbox.environment(), **self.names.environment()}}


class Administrator:
    """What can be asked of a running broker, in Erlang; ask: runs one expression there."""

    def __init__(self, ask):
        self.ask = ask

    def add_vhost(self, name):
        self.ask(f"ok = rabbit_vhost:add({binary(name)}, <<\"test\">>)")
        self.permit("guest", name)

    def permit(self, user, vhost, configure=".*", write=".*", read=".*"):
        rights = ", ".join(map(binary, (user, vhost, configure, write, read)))
        self.ask(f"ok = rabbit_auth_backend_internal:set_permissions({rights}, <<\"test\">>)")

    def add_user(self, name, password):
        self.ask(f"ok = rabbit_auth_backend_internal:add_user({binary(name)}, {binary(password)}, <<\"test\">>)")

    def delete_vhost(self, name):
        self.ask(f"rabbit_vhost:delete({binary(name)}, <<\"test\">>)")

    def raise_memory_alarm(self):
        self.ask("vm_memory_monitor:set_vm_memory_high_watermark(0.00001)")

    def clear_memory_alarm(self):
        self.ask("vm_memory_monitor:set_vm_memory_high_watermark(0.6)")

    def alarms(self):
        return self.ask("rabbit_alarm:get_alarms()")

    def close_connections(self, vhost=None):
        """Every client is disconnected, with a reason; or those of one virtual host."""
        close = "[rabbit_networking:close_connection(Pid, \"test\") || Pid <- rabbit_networking:connections()"
        if vhost:
            close += f", (catch rabbit_reader:info(Pid, [vhost])) =:= [{{vhost, {binary(vhost)}}}]"
        self.ask(close + "]")

    def connections(self, vhost):
        """The connections, as text; the same text later means that none was opened or closed."""
        return self.ask(f"lists:sort([P || [{{pid, P}}, {{vhost, V}}] <- rabbit_networking:connection_info_all([pid, vhost]),"
                        f" V =:= {binary(vhost)}])")

    def enable_plugins(self, names):
        """As rabbitmq-plugins does, without a restart."""
        self.ask('{ok, File} = application:get_env(rabbit, enabled_plugins_file),'
                 f' ok = file:write_file(File, "[{names}]."), {{ok, _, _}} = rabbit_plugins:ensure(File)')

    @contextlib.contextmanager
    def management(self):
        """The URL at which the management plugin answers meanwhile."""
        port = free_port()
        self.ask(f'application:set_env(rabbitmq_management, tcp_config, [{{port, {port}}}, {{ip, "127.0.0.1"}}])')
        self.enable_plugins("rabbitmq_management")
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            self.enable_plugins("")

    @contextlib.contextmanager
    def setting(self, **values):
        """Settings of channels that are opened from now on."""
        before = {name: self.ask(f"application:get_env(rabbit, {name})") for name in values}
        try:
            for name, value in values.items():
                self.ask(f"application:set_env(rabbit, {name}, {value})")
            yield
        finally:
            for name, text in before.items():
                value = text.removeprefix("{ok,").removesuffix("}")
                self.ask(f"application:{'unset_env' if text == 'undefined' else 'set_env'}(rabbit, {name}"
                         + ("" if text == "undefined" else f", {value}") + ")")

    def delete_exchange(self, vhost, name):
        self.ask(f"rabbit_exchange:delete(rabbit_misc:r({binary(vhost)}, exchange, {binary(name)}), false, <<\"test\">>)")

    def names(self, vhost):
        """Of all queues and exchanges."""
        result = self.ask(f"[rabbit_amqqueue:list_names({binary(vhost)}),"
                        f" [element(2, X) || X <- rabbit_exchange:list({binary(vhost)})]]")
        return set(re.findall(r'(?:queue|exchange),<<"(.*?)">>', result))

    def delete_queues(self, vhost):
        """All of them, as an operator may by mistake."""
        self.ask(f"[rabbit_amqqueue:delete(Q, false, false, <<\"test\">>) || Q <- rabbit_amqqueue:list({binary(vhost)})]")

    def limit_queues(self, vhost, pattern, length):
        """From now on a full queue refuses what is published."""
        limits = f"[{{<<\"max-length\">>, {length}}}, {{<<\"overflow\">>, <<\"reject-publish\">>}}]"
        self.ask(f"ok = rabbit_policy:set({binary(vhost)}, <<\"full\">>, {binary(pattern)}, {limits}, 0,"
                 " <<\"queues\">>, <<\"test\">>)")

    def limit_deliveries(self, vhost, pattern, limit):
        """From now on a quorum queue drops what has come back more often."""
        self.ask(f"ok = rabbit_policy:set({binary(vhost)}, <<\"often\">>, {binary(pattern)}, [{{<<\"delivery-limit\">>, {limit}}}],"
                 " 0, <<\"queues\">>, <<\"test\">>)")

    def set_policy(self, vhost, name, queue, definition):
        """definition: in Erlang."""
        self.ask(f"ok = rabbit_policy:set({binary(vhost)}, {binary(name)}, {binary(f'^{queue}$')}, {definition}, 0,"
                 " <<\"queues\">>, <<\"test\">>)")

    def delete_policy(self, vhost, name):
        self.ask(f"ok = rabbit_policy:delete({binary(vhost)}, {binary(name)}, <<\"test\">>)")

    def unbind(self, vhost, queue, exchange, key="#"):
        """As an operator may by mistake."""
        source, target = (f"rabbit_misc:r({binary(vhost)}, {kind}, {binary(name)})"
                          for kind, name in (("exchange", exchange), ("queue", queue)))
        self.ask(f"ok = rabbit_binding:remove({{binding, {source}, {binary(key)}, {target}, []}}, <<\"test\">>)")

    def lift_limits(self, vhost):
        self.ask(f"ok = rabbit_policy:delete({binary(vhost)}, <<\"full\">>, <<\"test\">>)")

    def readers(self, vhost, queue):
        """The number of its readers, from the node's own table: of streams no client can query it."""
        name = f"rabbit_misc:r({binary(vhost)}, queue, {binary(queue)})"
        return int(self.ask(f"length([1 || Row <- ets:tab2list(consumer_created), element(1, element(1, Row)) =:= {name}])"))

    def consumers(self, vhost, queue):
        """Standbys, too, which a client cannot count."""
        return int(self.ask(
            f"{{ok, Q}} = rabbit_amqqueue:lookup(rabbit_misc:r({binary(vhost)}, queue, {binary(queue)})),"
            " length(rabbit_amqqueue:consumers(Q))"))

    def is_bound(self, vhost, queue, exchange):
        """A queue is there a moment before its binding is."""
        name = f"rabbit_misc:r({binary(vhost)}, queue, {binary(queue)})"
        return self.ask(f"length([1 || B <- rabbit_binding:list_for_destination({name}),"
                        f" element(4, element(2, B)) =:= {binary(exchange)}])") != "0"

    def leader_of(self, vhost, queue):
        """The node on which the leader of a quorum queue is."""
        answer = self.ask(
            f"{{ok, Q}} = rabbit_amqqueue:lookup(rabbit_misc:r({binary(vhost)}, queue, {binary(queue)})),"
            " case amqqueue:get_pid(Q) of {_, Node} -> Node; Pid -> node(Pid) end")
        return answer.strip("'")

    def remove_replica(self, vhost, stream, node):
        """It is gone when this returns."""
        self.ask(f"ok = rabbit_stream_queue:delete_replica({binary(vhost)}, {binary(stream)}, '{node}')")
        members = (f"{{ok, Q}} = rabbit_amqqueue:lookup(rabbit_misc:r({binary(vhost)}, queue, {binary(stream)})),"
                   " rabbit_stream_coordinator:members(maps:get(name, amqqueue:get_type_state(Q)))")
        wait_until(lambda: node not in self.ask(members), 60, "a stream without that replica")

    def add_replica(self, vhost, stream, node):
        self.ask(f"ok = rabbit_stream_queue:add_replica({binary(vhost)}, {binary(stream)}, '{node}')")


def cluster(sandbox, size=3):
    """The first node is up before the others join."""
    names = NameService(sandbox)
    nodes = [RabbitMQ(sandbox, names, f"rabbit{number}") for number in range(1, size + 1)]
    peers = [node.node for node in nodes]
    for node in nodes:
        node.write("rabbitmq.conf", node.configuration(None, peers))
    for node in nodes:
        node.start()
    wait_until(lambda: nodes[0].ask("length(rabbit_mnesia:cluster_nodes(running))") == str(size), 60, "the cluster is whole")
    return nodes
