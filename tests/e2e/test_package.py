# SPDX-License-Identifier: Apache-2.0
"""Packages, units, image and manifests: what can be tested without another machine."""
import json
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from program import PROGRAM, TREE, wait_for
from test_run import ask

PACKAGING = TREE / "packaging"
BUILD = Path(os.environ.get("SEMEL_BUILD", TREE / "build"))


def needs(*programs):
    lacking = [name for name in programs if not shutil.which(name)]
    return pytest.mark.skipif(bool(lacking), reason=f"packages: {', '.join(lacking)} not installed")


def run(*words, cwd=None, env=None, code=0):
    done = subprocess.run([str(word) for word in words], cwd=cwd, env={**os.environ, **(env or {})}, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


# ---- Debian packages ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    """{name: file}, built by the one command from the tree that is tested."""
    folder = tmp_path_factory.mktemp("packages")
    paths = run(TREE / "scripts" / "package", folder, env={"SEMEL_BUILD": str(BUILD)}).split()
    return {Path(path).name.partition("_")[0]: path for path in paths}


class Machine:
    """A folder that dpkg takes for a whole machine; no script of a package leaves it."""

    def __init__(self, folder):
        self.root = folder
        for name in ("var/lib/dpkg/updates", "var/lib/dpkg/info", "etc"):
            (folder / name).mkdir(parents=True)
        (folder / "var/lib/dpkg/status").touch()

    def dpkg(self, *words):
        return run("dpkg", f"--root={self.root}", "--force-script-chrootless", "--force-depends", "--force-confold", "--log=/dev/null", *words,
                   env={"PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"})


@pytest.mark.slow
@needs("dpkg", "dpkg-shlibdeps", "cpack", "file")
@pytest.mark.skipif(os.geteuid() != 0, reason="packages: only root may install them, even into a folder")
def test_the_package_is_installed_runs_and_keeps_its_config_file(packages, tmp_path, bare):
    machine = Machine(tmp_path / "machine")
    machine.dpkg("--install", packages["semel"])
    program, config, tokens = machine.root / "usr/bin/semel", machine.root / "etc/semel/semel.yaml", machine.root / "etc/semel/tokens"
    token = re.search(r"^operate (\S+)$", tokens.read_text(), re.MULTILINE)[1]
    assert run(program, "--version") == run(PROGRAM, "--version")
    config.write_text(config.read_text().replace("/var/lib/semel/", "").replace("127.0.0.1:8082", "127.0.0.1:0").replace("/etc/semel/tokens", str(tokens)))
    bare.program = program
    env = {"SEMEL_CONFIG": str(config)}
    bare.ok("init", env=env)
    child = bare.spawn("run", env=env)
    url = child.stdout.readline().split()[2]
    bare.publish("--payload", "{}", env=env)
    assert ask(f"{url}/api/admin/dlq")[0] == ask(f"{url}/metrics")[0] == 401  # of any user of the machine
    wait_for(lambda: "\nsemel_published_total 1\n" in ask(f"{url}/metrics", token)[1], timeout=60, what="a published event")
    assert bare.stop(child) == 0
    edited = config.read_text()
    machine.dpkg("--install", packages["semel"])
    assert config.read_text() == edited and token in tokens.read_text()
    machine.dpkg("--remove", "semel")
    assert config.exists() and not program.exists()
    machine.dpkg("--purge", "semel")
    assert not config.exists() and not tokens.exists()


@pytest.mark.slow
@needs("dpkg-deb", "dpkg-shlibdeps", "cpack", "file")
def test_the_packages_have_all_their_files(packages, tmp_path):
    for path in packages.values():
        run("dpkg-deb", "-x", path, tmp_path)
    assert packages.keys() == {"semel", "libsemel0", "libsemel-dev"}
    fields = json.loads(run("dpkg-deb", "-W", "--showformat", '{"depends": "${Depends}", "version": "${Version}"}', packages["semel"]))
    for library in ("libc6", "libsqlite3-0", "libjansson4", "libyaml-0-2", "libmicrohttpd12"):
        assert library in fields["depends"]
    assert fields["version"] in run(PROGRAM, "--version")
    assert run("dpkg-deb", "-I", packages["semel"], "conffiles") == "/etc/semel/semel.yaml\n"
    files = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if not path.is_dir()}
    units = sorted((tmp_path / "usr/lib/systemd/system").glob("*.service"))
    assert len(units) == 6 and "usr/lib/systemd/system/semel-.service.d/hardening.conf" in files
    for unit in units:
        for command in re.findall(r"^Exec\w+=(\S+semel) ", unit.read_text(), re.MULTILINE):
            assert command.removeprefix("/") in files, unit.name
        for page, section in re.findall(r"man:([\w-]+)\((\d)\)", unit.read_text()):
            assert f"usr/share/man/man{section}/{page}.{section}" in files, unit.name
    for page in re.findall(r"docs/(runbooks/\S+)", (PACKAGING / "prometheus/semel-alerts.yaml").read_text()):
        if page.endswith(".md"):
            assert f"usr/share/doc/semel/{page}" in files
    for name in ("usr/share/doc/semel/examples/semel.yaml", "usr/share/doc/semel/copyright", "usr/lib/sysusers.d/semel.conf",
                 "usr/include/semel/semel.h", "usr/lib/libsemel.so.0", "usr/lib/pkgconfig/semel.pc"):
        assert name in files


@needs("dash")
def test_the_scripts_of_the_package_are_sound():
    for name in ("postinst", "prerm", "postrm"):
        path = PACKAGING / "debian" / name
        assert os.access(path, os.X_OK)
        run("dash", "-n", path)
        for word in ("configure", "remove", "purge", "upgrade"):
            run("dash", path, word, env={"DPKG_ROOT": "/nowhere"})


def make_tokens(root):
    run("dash", PACKAGING / "debian/postinst", "configure", env={"DPKG_ROOT": str(root)})
    return (root / "etc/semel/tokens").read_text()


@needs("dash")
def test_the_package_makes_tokens_of_its_own_that_only_its_users_can_read(tmp_path):
    texts = []
    for name in ("one", "other"):
        (tmp_path / name / "etc/semel").mkdir(parents=True)
        texts.append(make_tokens(tmp_path / name))
    file = tmp_path / "one/etc/semel/tokens"
    assert file.stat().st_mode & 0o777 == 0o600 and [path.name for path in file.parent.iterdir()] == ["tokens"]
    assert re.fullmatch(r"#.*\noperate [0-9a-f]{64}\nread [0-9a-f]{64}\n", texts[0])
    assert len(set(re.findall(r"[0-9a-f]{64}", "".join(texts)))) == 4
    assert make_tokens(tmp_path / "one") == texts[0]
    script = (PACKAGING / "debian/postinst").read_text()
    assert "chown root:semel" in script and "chmod 0640" in script
    run("dash", PACKAGING / "debian/postrm", "purge", env={"DPKG_ROOT": str(tmp_path / "one")})
    assert not file.exists()


# ---- what was built ----------------------------------------------------------------------------


@needs("readelf")
def test_program_and_library_are_hardened_against_the_use_of_memory_errors():
    commands = (BUILD / "compile_commands.json").read_text()
    for name in ("semel", "libsemel.so"):
        text = run("readelf", "--file-header", "--program-headers", "--dynamic", "--dyn-syms", "--wide", BUILD / name)
        assert re.search(r"Type:\s+DYN", text), "position-independent"
        assert "GNU_RELRO" in text and re.search(r"FLAGS_1.*\bNOW\b", text), "no lazy binding"
        assert re.search(r"GNU_STACK.* RW +0x", text), "a stack that cannot be executed"
        assert not re.search(r"\((RPATH|RUNPATH|TEXTREL)\)", text)
        if "-fsanitize=" not in commands:
            assert "__stack_chk_fail" in text and "__vsnprintf_chk" in text
    for flag in ("-fstack-clash-protection", "-fstack-protector-strong"):
        assert flag in commands


def test_libraries_are_loaded_by_their_name_alone():
    """Their directory is left to the loader: no path in the name, no variable."""
    names = [name for path in TREE.glob("src/**/*.c") for name in re.findall(r'"([^"\n]*\.so(?:\.\d+)?)"', path.read_text())]
    assert len(names) > 8 and all(re.fullmatch(r"lib[\w-]+\.so(\.\d+)?", name) for name in names), names


# ---- systemd -----------------------------------------------------------------------------------


@needs("systemd-analyze")
def test_the_units_are_hardened(tmp_path):
    """systemd's own rating: an exposure below 2 of 10."""
    shutil.copytree(PACKAGING / "systemd", tmp_path / "units")
    for unit in sorted((tmp_path / "units").glob("*.service")):
        unit.write_text(unit.read_text().replace("/usr/local/bin/semel", str(PROGRAM)))
        name = unit.name.replace("@.", "@billing.")
        run("systemd-analyze", "security", "--offline=true", "--threshold=20", "--no-pager", f"./{name}", cwd=unit.parent)


def test_the_unit_of_run_has_notifications_and_a_watchdog():
    text = (PACKAGING / "systemd" / "semel-run.service").read_text()
    hardening = (PACKAGING / "systemd/semel-.service.d/hardening.conf").read_text()
    for line in ("LimitCORE=0", "UMask=0077", "StateDirectoryMode=0700", "NoNewPrivileges=true", "ProtectSystem=strict", "CapabilityBoundingSet="):
        assert f"\n{line}\n" in hardening
    for line in ("Type=notify", "WatchdogSec=30", "ExecReload=/bin/kill -HUP $MAINPID", "RestartPreventExitStatus=64 78"):
        assert f"\n{line}\n" in text


def test_no_service_has_the_credentials_of_init():
    """Only init, which creates the tables, needs the URL of their owner."""
    for path in sorted((PACKAGING / "systemd").glob("semel-*.service")):
        text, alone = path.read_text(), path.name == "semel-init.service"
        assert ("semel init\n" in text) == alone, path.name
        if path.name in ("semel-run.service", "semel-relay.service", "semel-consume@.service"):
            assert re.search(r"^Wants=.*semel-init\.service", text, re.M) and re.search(r"^After=.*semel-init\.service", text, re.M)
    pod = manifests()["Deployment"]["spec"]["template"]["spec"]
    (first,), (main,) = pod["initContainers"], pod["containers"]
    (owner,) = [volume["name"] for volume in pod["volumes"] if volume.get("secret", {}).get("secretName") == "semel-owner"]
    assert first["args"] == ["init"] and owner in {mount["name"] for mount in first["volumeMounts"]}
    assert owner not in {mount["name"] for mount in main["volumeMounts"]}
    stores = [next(one["value"] for one in container["env"] if one["name"] == "SEMEL_STORE_FILE") for container in (first, main)]
    assert stores[0] != stores[1]
    cron = manifests()["CronJob"]["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    assert "semel-owner" not in str(cron)


# ---- image and manifests -----------------------------------------------------------------------

KNOWN = {"FROM", "COPY", "WORKDIR", "RUN", "USER", "VOLUME", "ENV", "STOPSIGNAL", "ENTRYPOINT", "CMD", "EXPOSE", "LABEL", "ARG"}


def instructions():
    """[(word, rest)] of the Dockerfile."""
    text = re.sub(r"^#.*\n", "", (PACKAGING / "docker" / "Dockerfile").read_text(), flags=re.MULTILINE)
    return [line.split(None, 1) for line in text.replace("\\\n", " ").splitlines() if line.strip()]


def test_the_image_is_made_as_images_should_be():
    found = instructions()
    assert {word for word, _ in found} <= KNOWN
    stages = [rest.split() for word, rest in found if word == "FROM"]
    for stage in stages:
        assert re.fullmatch(r"[\w./-]+:[\w.-]+", stage[0]) and not stage[0].endswith(":latest")
    last = found[max(at for at, (word, _) in enumerate(found) if word == "FROM"):]
    users = [rest.strip() for word, rest in last if word == "USER"]
    assert users and users[-1].isdigit() and users[-1] != "0"
    for word, rest in found:
        if word in ("ENTRYPOINT", "CMD"):
            assert json.loads(rest)
        if word == "RUN" and "apt-get install" in rest:
            assert "--no-install-recommends" in rest and "rm -rf /var/lib/apt/lists/*" in rest
        if word == "COPY" and "--from=" in rest:
            assert re.search(r"--from=(\w+)", rest)[1] in {stage[-1] for stage in stages}
    for _, rest in found:
        for part in shlex.split(rest) if "scripts/" in rest else ():
            assert not part.startswith("scripts/") or os.access(TREE / part, os.X_OK), part


yaml = pytest.importorskip("yaml", reason="manifests: python3-yaml (of yamllint) is not installed")


def manifests():
    return {one["kind"]: one for one in yaml.safe_load_all((PACKAGING / "kubernetes" / "semel.yaml").read_text())}


def pods():
    kinds = manifests()
    yield kinds["Deployment"]["spec"]["template"]["spec"]
    yield kinds["CronJob"]["spec"]["jobTemplate"]["spec"]["template"]["spec"]


@needs("yamllint")
def test_every_yaml_file_passes_yamllint():
    run("yamllint", "--strict", "-c", TREE / ".yamllint", PACKAGING)


def test_the_pods_have_no_more_rights_than_they_need():
    image = instructions()
    user = int(next(rest for word, rest in image if word == "USER"))
    for pod in pods():
        assert pod["automountServiceAccountToken"] is False
        assert (pod["securityContext"]["runAsNonRoot"], pod["securityContext"]["runAsUser"]) == (True, user)
        mounted = {volume["name"] for volume in pod["volumes"]}
        for container in [*pod["containers"], *pod.get("initContainers", ())]:
            rights = container["securityContext"]
            assert rights == {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
            assert {mount["name"] for mount in container["volumeMounts"]} <= mounted
            assert container["resources"]["limits"]["memory"]
            assert not container["image"].endswith(":latest")


def test_the_pods_connect_only_to_peers_that_are_named():
    kinds = manifests()
    policy = kinds["NetworkPolicy"]["spec"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    selector = policy["podSelector"]["matchLabels"].items()
    for template in (kinds["Deployment"]["spec"]["template"], kinds["CronJob"]["spec"]["jobTemplate"]["spec"]["template"]):
        assert selector <= template["metadata"]["labels"].items()
    for direction, side in (("ingress", "from"), ("egress", "to")):
        for rule in policy[direction]:
            assert rule["ports"] and all(peer["namespaceSelector" if "namespaceSelector" in peer else "podSelector"] for peer in rule[side])
    assert [port["port"] for rule in policy["ingress"] for port in rule["ports"]] == [8082]
    name = kinds["Service"]["spec"]["selector"].items()
    assert not name <= kinds["CronJob"]["spec"]["jobTemplate"]["spec"]["template"]["metadata"]["labels"].items()


def test_nothing_secret_is_in_the_manifests_or_the_image():
    kinds = manifests()
    assert "Secret" not in kinds and "PASSWORD" not in (PACKAGING / "kubernetes/semel.yaml").read_text().upper()
    for pod in pods():
        for container in [*pod["containers"], *pod.get("initContainers", ())]:
            assert all(one["name"] == "SEMEL_CONFIG" or one["value"].startswith("/run/semel/") for one in container["env"])
    (installing,) = [rest for word, rest in instructions() if word == "RUN" and "/tmp/semel_*.deb" in rest]
    assert re.search(r"&& rm -rf .*/etc/semel/tokens ", installing)
    for word, rest in instructions():
        assert word not in ("ENV", "ARG", "LABEL") or not re.search("token|secret|passw|_STORE|_BROKER", rest, re.IGNORECASE)


def test_the_manifests_fit_together_and_to_the_program(bare):
    kinds = manifests()
    deployment, service = kinds["Deployment"]["spec"], kinds["Service"]["spec"]
    labels = deployment["template"]["metadata"]["labels"]
    for selector in (deployment["selector"]["matchLabels"], service["selector"], kinds["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"]):
        assert selector.items() <= labels.items()
    (container,) = deployment["template"]["spec"]["containers"]
    assert service["ports"][0]["targetPort"] in {port["name"] for port in container["ports"]}
    for probe, path in (("livenessProbe", "/livez"), ("readinessProbe", "/readyz")):
        assert container[probe]["httpGet"] == {"path": path, "port": "admin", "scheme": "HTTPS"}
    config = kinds["ConfigMap"]["data"]["semel.yaml"]
    port = container["ports"][0]["containerPort"]
    assert f":{port}\"" in config
    for path in re.findall(r"/run/\S+", config):
        assert any(path.startswith(mount["mountPath"]) for mount in container["volumeMounts"]), path
    bare.ok("init")
    (bare.folder / "semel.yaml").write_text(config)
    bare.ok("--config", "semel.yaml", "dlq", "count")
