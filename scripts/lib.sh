# SPDX-License-Identifier: Apache-2.0
# Shared by build, test and demo: finds out what the machine lacks, and installs it from Debian's
# packages as root, or says the one line that would. Plain sh: nothing else may be there yet.

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
'
packages_test='
libcmocka-dev module cmocka
clang command clang
clang-format command clang-format
clang-tidy command clang-tidy
libclang-rt-14-dev runtime asan
python3 file /usr/bin/python3
python3-pytest python pytest
sqlite3 command sqlite3
mandoc command mandoc
'

say() {
	printf '%s\n' "$*" >&2
}

# there KIND PROBE: is it on this machine?
there() {
	case $1 in
	command) command -v "$2" ;;
	file) test -e "$2" ;;
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

# need LIST...: returns when everything in the lists is there, and ends the script otherwise
need() {
	wanted=$(missing_of "$*")
	[ -n "$wanted" ] || return 0
	line="apt-get install -y --no-install-recommends $wanted"
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
	export DEBIAN_FRONTEND=noninteractive
	log=$(mktemp)
	# shellcheck disable=SC2086 # the names are words
	if ! { apt-get update && $line; } >"$log" 2>&1 </dev/null; then
		cat "$log" >&2
		rm -f "$log"
		say "could not install them (is the network there?). The line was: $line"
		exit 69
	fi
	rm -f "$log"
	wanted=$(missing_of "$*")
	[ -z "$wanted" ] || {
		say "installed, but still not found: $wanted"
		exit 70
	}
}

# build_release: the shipped program in build/, quietly; the compiler's words only when it fails
build_release() {
	log=$(mktemp)
	if ! { cmake --preset release && cmake --build --preset release; } >"$log" 2>&1; then
		cat "$log" >&2
		rm -f "$log"
		say "the build failed; what the compiler said stands above"
		exit 70
	fi
	rm -f "$log"
}
