#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The bill of materials of a release, SPDX 2.3 as JSON: sbom.py [SOURCE-FOLDER] >FILE.

`meson dist` calls it for the tarball, with MESON_DIST_ROOT; the file is then sbom.spdx.json there. It has
each file of the sources with its hash, and each library of dev.d/deps.list that the build links, with its
licence and, where pkg-config knows it, the version of this machine. The same tree gives the same bytes."""
import datetime
import hashlib
import json
import os
import re
import subprocess
import sys

# What the rows of [build] with a library or a header are, by their check; all others are tools.
LIBRARIES = {
    "lib:jansson": ("jansson", "MIT", "jansson", "STATIC_LINK"),
    "lib:libuv": ("libuv", "MIT", "libuv", "STATIC_LINK"),
    "lib:libsodium": ("libsodium", "ISC", "libsodium", "STATIC_LINK"),
    "lib:yaml-0.1": ("libyaml", "MIT", "yaml-0.1", "DYNAMIC_LINK"),
    "header:slurm/slurm.h": ("slurm", "GPL-2.0-or-later", None, "DYNAMIC_LINK"),
    "lib:ompi-c|mpich": ("openmpi", "BSD-3-Clause", "ompi-c", "DYNAMIC_LINK"),
}
C_LIBRARY = "header:stdlib.h"


def library_rows(source):
    """The checks of the libraries in the set [build]."""
    part = None
    with open(os.path.join(source, "dev.d", "deps.list"), encoding="utf-8") as f:
        for line in f:
            words = line.split("#")[0].split()
            if words and words[0].startswith("["):
                part = words[0]
            elif words and part == "[build]":
                check = words[1].lstrip("?")
                if check.startswith(("lib:", "header:")) and check != C_LIBRARY:
                    yield check


def version_of(module):
    if not module:
        return "NOASSERTION"
    found = subprocess.run(["pkg-config", "--modversion", module], capture_output=True, text=True, check=False)
    return found.stdout.strip() or "NOASSERTION"


def source_files(source):
    """A released tree has no .git; in a checkout only what git knows belongs to it."""
    if os.path.exists(os.path.join(source, ".git")):
        listed = subprocess.run(["git", "-C", source, "ls-files", "-z"], capture_output=True, check=True)
        names = [n.decode() for n in listed.stdout.split(b"\0") if n]
    else:
        names = [os.path.relpath(os.path.join(at, n), source) for at, _, ns in os.walk(source) for n in ns]
    return sorted(n for n in names if n != "sbom.spdx.json" and os.path.isfile(os.path.join(source, n))
                  and not os.path.islink(os.path.join(source, n)))


def created(source):
    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    if not epoch:
        where = os.environ.get("MESON_SOURCE_ROOT", source)
        said = subprocess.run(["git", "-C", where, "log", "-1", "--format=%ct"], capture_output=True, text=True,
                              check=False)
        epoch = said.stdout.strip() or "0"
    return datetime.datetime.fromtimestamp(int(epoch), datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def document(source):
    with open(os.path.join(source, "meson.build"), encoding="utf-8") as f:
        version = re.search(r"version: '([^']+)'", f.read()).group(1)
    files, hashes = [], []
    for name in source_files(source):
        with open(os.path.join(source, name), "rb") as f:
            data = f.read()
        hashes.append(hashlib.sha1(data).hexdigest())
        files.append({"fileName": "./" + name, "SPDXID": f"SPDXRef-File-{len(files)}",
                      "checksums": [{"algorithm": "SHA1", "checksumValue": hashes[-1]},
                                    {"algorithm": "SHA256", "checksumValue": hashlib.sha256(data).hexdigest()}],
                      "licenseConcluded": "MIT", "copyrightText": "NOASSERTION"})
    code = hashlib.sha1("".join(sorted(hashes)).encode()).hexdigest()  # SPDX 2.3, 7.9
    packages = [{"name": "plume", "SPDXID": "SPDXRef-plume", "versionInfo": version, "filesAnalyzed": True,
                 "packageVerificationCode": {"packageVerificationCodeValue": code},
                 "downloadLocation": "NOASSERTION", "licenseDeclared": "MIT", "licenseConcluded": "MIT",
                 "copyrightText": "NOASSERTION"}]
    relations = [{"spdxElementId": "SPDXRef-DOCUMENT", "relationshipType": "DESCRIBES",
                  "relatedSpdxElement": "SPDXRef-plume"}]
    relations += [{"spdxElementId": "SPDXRef-plume", "relationshipType": "CONTAINS",
                   "relatedSpdxElement": f["SPDXID"]} for f in files]
    for check in library_rows(source):
        name, licence, module, how = LIBRARIES[check]
        packages.append({"name": name, "SPDXID": f"SPDXRef-{name}", "versionInfo": version_of(module),
                         "filesAnalyzed": False, "downloadLocation": "NOASSERTION", "licenseDeclared": licence,
                         "licenseConcluded": licence, "copyrightText": "NOASSERTION"})
        relations.append({"spdxElementId": "SPDXRef-plume", "relationshipType": how,
                          "relatedSpdxElement": f"SPDXRef-{name}"})
    return {"spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT",
            "name": f"plume-{version}", "documentNamespace": f"urn:plume:{version}:{code}",
            "creationInfo": {"created": created(source), "creators": ["Tool: plume-sbom"]},
            "packages": packages, "files": files, "relationships": relations}


def main():
    dist = os.environ.get("MESON_DIST_ROOT")
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    source = dist or (sys.argv[1] if len(sys.argv) > 1 else here)
    text = json.dumps(document(source), indent=1) + "\n"
    if not dist:
        sys.stdout.write(text)
        return
    with open(os.path.join(dist, "sbom.spdx.json"), "w", encoding="utf-8") as f:
        f.write(text)


main()
