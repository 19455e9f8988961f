#!/bin/sh
# Builds the sandbox base as a root file system: build.sh OUT.tar. Needs root and mmdebstrap.
#
# Packages are unpacked, not configured: nothing in a sandbox needs what their scripts would do, and
# it makes the build several times faster. The few files that scripts write are made here.
set -eu

out=${1:?usage: build.sh OUT.tar}
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-1700000000}
export SOURCE_DATE_EPOCH README="$here/README.workspace.md"

mmdebstrap --quiet --variant=extract \
    --include=python3,coreutils,dash,bash,procps,sed,grep,findutils,util-linux,libc-bin \
    --include=base-files,base-passwd,hostname,tar,gzip \
    --extract-hook='
        set -eu; cd "$1"
        cp usr/share/base-passwd/passwd.master etc/passwd
        cp usr/share/base-passwd/group.master etc/group
        mkdir -p workspace dataset output tmp usr/local/bin
        chmod 1777 tmp
        cp "$README" workspace/README.md
        rm -rf usr/share/doc usr/share/man usr/share/info usr/share/locale usr/share/lintian \
            usr/lib/python3.11/pydoc_data usr/lib/python3.11/lib2to3 var/cache/* var/lib/apt/* \
            var/lib/dpkg/info usr/lib/*/gconv usr/share/perl usr/share/zoneinfo/right \
            usr/share/zoneinfo/posix
        chroot . python3 -m compileall -q -j 2 --invalidation-mode unchecked-hash \
            /usr/lib/python3.11 >/dev/null
    ' \
    bookworm "$out"
