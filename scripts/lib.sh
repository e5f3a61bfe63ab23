# SPDX-License-Identifier: Apache-2.0
# Shared by build, test and demo: finds out what the machine lacks, and installs it from Debian's
# packages as root, or prints the command that would. Plain sh: nothing else may be installed yet.

cd "$(dirname "$0")/.." || exit 70
root=$PWD

# package, kind of probe, what is probed. The probe decides, so a compiler from elsewhere will do.
packages_build='
gcc command gcc
libc6-dev file /usr/include/stdio.h
make command make
cmake command cmake
ninja-build command ninja
pkg-config command pkg-config
libsqlite3-dev module sqlite3
libjansson-dev module jansson
libyaml-dev module yaml-0.1
libcurl4-openssl-dev module libcurl
libpq-dev module libpq
librabbitmq-dev module librabbitmq
libmicrohttpd-dev module libmicrohttpd
librdkafka-dev module rdkafka
'
packages_test='
libcmocka-dev module cmocka
clang command clang
clang-format command clang-format
clang-tidy command clang-tidy
libclang-rt-14-dev runtime asan
python3 file /usr/bin/python3
python3-pytest python pytest
python3-pytest-xdist python xdist
sqlite3 command sqlite3
curl command curl
mandoc command mandoc
'
# Servers that the tests, and the demo on real ones, start for themselves.
packages_servers='
postgresql-15 pattern /usr/lib/postgresql/*/bin/postgres
rabbitmq-server file /usr/lib/rabbitmq/bin/rabbitmq-server
python3-psycopg2 python psycopg2
python3-pika python pika
openssl command openssl
default-jre-headless command java
maven command mvn
kcat command kcat
python3-confluent-kafka python confluent_kafka
'
# A pooler before PostgreSQL, for the tests of one.
packages_pooler='
pgbouncer file /usr/sbin/pgbouncer
'
# A clock that a test may set, for programs that it starts.
packages_clock='
faketime pattern /usr/lib/*/faketime/libfaketime.so.1
'
# A browser for the tests of the page.
packages_page='
chromium command chromium
chromium-driver command chromedriver
python3-selenium python selenium
'
# What checks alert rules, units and manifests.
packages_lint='
prometheus command promtool
yamllint command yamllint
systemd command systemd-analyze
'
# What builds the Debian packages.
packages_package='
dpkg-dev command dpkg-shlibdeps
file command file
'

say() {
	printf '%s\n' "$*" >&2
}

# there KIND PROBE: is it on this machine?
there() {
	case $1 in
	command) command -v "$2" ;;
	file) test -e "$2" ;;
	pattern) ls $2 ;; # a pattern of the shell: left bare on purpose
	module) pkg-config --exists "$2" ;;
	python) /usr/bin/python3 -c "import $2" ;;
	runtime) ls "$(clang -print-resource-dir)"/lib/*/libclang_rt."$2"* ;;
	esac >/dev/null 2>&1
}

# missing_of LIST: the packages of the list that are not there, on one line
missing_of() {
	missing=
	while read -r package kind probe; do
		[ -z "$package" ] || there "$kind" "$probe" || missing="$missing $package"
	done <<-LIST
	$1
	LIST
	printf '%s' "${missing# }"
}

apt_line='apt-get install -y --no-install-recommends'

# install LINE: with apt, quietly; its output only when it fails. Another apt that runs is waited for.
install() {
	export DEBIAN_FRONTEND=noninteractive
	log=$(mktemp)
	failed=0
	# shellcheck disable=SC2086 # the names are words
	{ apt-get update && $1 -o DPkg::Lock::Timeout=300; } >"$log" 2>&1 </dev/null || failed=1
	[ $failed = 0 ] || cat "$log" >&2
	rm -f "$log"
	return $failed
}

# need LIST...: returns when everything in the lists is there, and ends the script otherwise
need() {
	wanted=$(missing_of "$*")
	[ -n "$wanted" ] || return 0
	line="$apt_line $wanted"
	if ! command -v apt-get >/dev/null 2>&1; then
		say "missing here, by the names of Debian's packages: $wanted"
		exit 69
	fi
	if [ "$(id -u)" != 0 ]; then
		say "some packages are missing, and only root may install them. As root, run:"
		say "  $line"
		exit 69
	fi
	say "installing: $wanted"
	install "$line" || {
		say "could not install them (is the network there?). The line was: $line"
		exit 69
	}
	wanted=$(missing_of "$*")
	[ -z "$wanted" ] || {
		say "installed, but still not found: $wanted"
		exit 70
	}
}

# ---- servers: installed, never started -----------------------------------------------------------
# The files are the system's; the tests give another folder.
system=${SEMEL_SYSTEM:-}
policy=$system/usr/sbin/policy-rc.d
clusters=$system/etc/postgresql-common/createcluster.d
no_cluster=$clusters/semel-tests.conf

# enabled: every link by which something is started with the machine
enabled() {
	find "$system/etc/systemd/system" "$system"/etc/rc*.d -type l 2>/dev/null | sort
}

# forbid_services: while packages are installed nothing may be started, nor a cluster made
forbid_services() {
	kept=$(mktemp -d)
	[ ! -e "$policy" ] || cp -p "$policy" "$kept/policy"
	enabled >"$kept/enabled"
	[ -d "$clusters" ] || : >"$kept/no-folder"
	mkdir -p "$clusters" "${policy%/*}"
	printf 'create_main_cluster = false\n' >"$no_cluster"
	printf '#!/bin/sh\nexit 101\n' >"$policy"
	chmod 755 "$policy"
}

# allow_services: restores the files, and disables what the packages enabled
allow_services() {
	[ -d "${kept:-}" ] || return 0
	rm -f "$policy" "$no_cluster"
	[ ! -e "$kept/policy" ] || cp -p "$kept/policy" "$policy"
	[ ! -e "$kept/no-folder" ] || rmdir "$clusters" 2>/dev/null || :
	enabled | while read -r link; do
		grep -qxF "$link" "$kept/enabled" || rm -f "$link"
	done
	rm -rf "$kept"
}

# want LIST WHAT: installs what is missing of the list; without the right to, prints the command, and goes on
want() {
	wanted=$(missing_of "$1")
	[ -n "$wanted" ] || return 0
	line="$apt_line $wanted"
	if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null 2>&1; then
		say "$2: left out, since some packages are missing. As root, run:"
		say "  $line"
		return 0
	fi
	say "installing, without starting or enabling anything: $wanted"
	trap 'allow_services' EXIT
	trap 'exit 130' INT TERM HUP
	forbid_services
	installed=0
	install "$line" || installed=$?
	allow_services
	trap - EXIT INT TERM HUP
	[ $installed = 0 ] || say "could not install them ($2: left out). The line was: $line"
}

want_servers() {
	want "$packages_servers" "real servers"
}

# build_release: the shipped program in build/, quietly; the compiler's output only when it fails
build_release() {
	log=$(mktemp)
	if ! { cmake --preset release && cmake --build --preset release; } >"$log" 2>&1; then
		cat "$log" >&2
		rm -f "$log"
		say "the build failed (the compiler's output is above)"
		exit 70
	fi
	rm -f "$log"
}
