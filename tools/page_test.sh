#!/usr/bin/env bash
# Tests of the web page (crates/server/page): its parsers and state in Node, the whole of it in headless Chromium against a
# server without a model. Installs either from Debian's packages if it is missing. PAGE_SHOTS=DIR keeps screenshots.
set -euo pipefail
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
