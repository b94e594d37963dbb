#!/bin/sh
# Makes or repairs the environment: scripts/setup.sh [folder [python]]. Called by make, from the top folder.
set -u

venv=${1:-.venv}
wanted=${2:-}
stamp=$venv/.ready
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 PIP_USER=0

say() { printf 'setup: %s\n' "$*"; }
fail() { printf 'setup: %s\n' "$*" >&2; exit 1; }

# The stamp holds where the code lies and what was asked for, so a touched pyproject.toml costs no network.
here=$(pwd -P)
contents="$here
$(cksum < pyproject.toml)"

# Prints the version; fails where it is too old or no Python at all (a shim of a version manager, say).
version_of() {
    "$1" -c 'import sys; print("%d.%d.%d" % sys.version_info[:3]); sys.exit(sys.version_info < (3, 11))' 2>/dev/null
}

has_pip() { # tools such as uv make environments without it
    "$venv/bin/python" -m pip --version >/dev/null 2>&1 || "$venv/bin/python" -m ensurepip >/dev/null 2>&1
}

choose_python() {
    if [ -n "$wanted" ]; then
        python=$wanted
        version=$(version_of "$python") && return
        [ -n "$version" ] && fail "PYTHON=$wanted is Python $version, and triptych needs 3.11 or newer."
        fail "PYTHON=$wanted does not run; name a Python 3.11 or newer, as in PYTHON=python3.12 make setup"
    fi
    old=
    for python in python3 python3.13 python3.12 python3.11 python3.14; do
        version=$(version_of "$python") && return
        [ -n "$version" ] && old=$version
    done
    how="install a newer one, or name it: PYTHON=/path/to/python3.12 make setup"
    [ -n "$old" ] && fail "python3 is Python $old, and triptych needs 3.11 or newer; $how"
    fail "triptych needs Python 3.11 or newer, and there is no python3 on the PATH; $how"
}

# A kernel lock on pyproject.toml, kept by this shell and its children: it cannot be left behind by a crash.
lock='import fcntl, os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
file = os.open("pyproject.toml", os.O_RDONLY)
try:
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    print("setup: another make is setting up here; waiting for it to finish.", flush=True)
    fcntl.flock(file, fcntl.LOCK_EX)
except OSError:
    pass  # a file system without locks
os.set_inheritable(file, True)
os.execvp(sys.argv[1], sys.argv[1:])'

make_environment() {
    if [ -e "$venv" ] && [ ! -d "$venv" ]; then
        fail "VENV=$venv is a file; name a folder, or remove it."
    fi
    # --clear empties the folder: never one that a person filled with something else.
    if [ "$venv" != .venv ] && { [ -n "$present" ] || [ ! -f "$venv/pyvenv.cfg" ]; } &&
        [ -n "$(find "$venv" ! -type d 2>/dev/null | head -n 1)" ]; then
        fail "VENV=$venv holds ${present:+Python $present or }something that setup must not remove;" \
            "name an environment with Python 3.11 or newer, or a new folder."
    fi
    "$python" -c 'import ensurepip, venv' 2>/dev/null ||
        fail "$python ($version) comes without venv and pip; install them (Debian, Ubuntu:" \
            "apt install python${version%.*}-venv), or name another Python: PYTHON=python3.12 make setup"
    "$python" -m venv --clear "$venv" ||
        fail "$python could not make an environment in $venv (see above); free some space," \
            "or choose a folder that can be written: VENV=/some/folder make setup"
}

install_packages() {
    # pip takes a package for installed as soon as it has a name; its list of files is written last.
    for package in "$venv"/lib/python*/site-packages/*.dist-info; do
        [ ! -d "$package" ] || [ -f "$package/RECORD" ] || rm -rf "$package"
    done
    "$venv/bin/python" -m pip install --editable '.[dev]' && return
    free=$(df -Pk "$venv" | awk 'NR == 2 { print int($4 / 1048576) }')
    fail "pip could not install the packages (see above). It needs the network (HTTPS_PROXY, PIP_INDEX_URL)," \
        "a Python that torch has a build for (this is $version) and about $size of disk" \
        "(${free:-?} GB are free); then 'make setup' goes on from here."
}

size="6 GB"
[ "$(uname -s)" = Linux ] || size="2 GB"

if present=$(version_of "$venv/bin/python"); then
    if [ -n "$wanted" ] && asked=$(version_of "$wanted") && [ "${asked%.*}" != "${present%.*}" ]; then
        fail "$venv has Python $present; for PYTHON=$wanted remove it first (rm -r $venv) or name another: VENV="
    fi
    if [ "$(cat "$stamp" 2>/dev/null)" = "$contents" ]; then
        touch "$stamp" # newer than pyproject.toml, for make
        say "$venv is ready (Python $present)."
        exit 0
    fi
    python=$venv/bin/python
    version=$present
else
    choose_python
fi

if [ "${3:-}" != locked ]; then
    exec "$python" -c "$lock" sh "$0" "$venv" "$wanted" locked
fi

trap 'fail "interrupted; make setup goes on from here."' INT TERM HUP
rm -f "$stamp"
if [ "$python" = "$venv/bin/python" ] && has_pip; then
    say "bringing $venv up to date (Python $version): what is missing is downloaded, up to $size."
else
    [ "$python" != "$venv/bin/python" ] || choose_python
    say "making $venv with $python ($version): about $size, most of it torch; 2 to 10 minutes."
    make_environment
fi
install_packages
{ printf '%s\n' "$contents" > "$stamp.new" && mv "$stamp.new" "$stamp"; } ||
    fail "$stamp could not be written; free some space, then 'make setup' again."
say "$venv is ready (Python $version)."
