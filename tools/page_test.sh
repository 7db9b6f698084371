#!/usr/bin/env bash
# Tests of the web page (crates/server/page): its parsers and state in Node, the whole of it in headless Chromium against a
# server without a model, and against mlxcel-server with the embedded demo (MLXCEL_SERVER=PROGRAM, else the release build; it is left out
# where there is none, unless PAGE_NEEDS_DEMO is set). Installs Node and Chromium from Debian's packages if they are missing.
# PAGE_SHOTS=DIR keeps screenshots.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
if [ -z "${MLXCEL_SERVER:-}" ]; then
    built=$(cd "$root" && cd "${CARGO_TARGET_DIR:-target}" 2>/dev/null && pwd || true)/release/mlxcel-server
    if [ -x "$built" ]; then
        export MLXCEL_SERVER=$built
    elif [ -n "${PAGE_NEEDS_DEMO:-}" ]; then
        echo "expected $built; make it with: cargo build --release -p mlxcel-cli"
        exit 1
    fi
fi
cd "$(dirname "$0")/../crates/server/page"

missing=()
command -v node >/dev/null || missing+=(nodejs)
browser=${CHROMIUM:-}
for name in chromium chromium-browser google-chrome; do
    [ -n "$browser" ] || browser=$(command -v "$name" || true)
done
[ -n "$browser" ] || missing+=(chromium)
if [ ${#missing[@]} -gt 0 ]; then
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
        echo "missing: ${missing[*]}; install them (Debian: apt-get install ${missing[*]}) and run this again"
        exit 1
    fi
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "${missing[@]}" >/dev/null
fi
if [ "$(node -p 'process.versions.node.split(".")[0]')" -lt 20 ]; then
    echo "expected Node 20 or newer, found $(node --version)"
    exit 1
fi
for file in *.js tests/*.js; do node --check "$file"; done
node --test --test-reporter=spec tests/*.test.js
