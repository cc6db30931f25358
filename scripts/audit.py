"""`make audit`: pip-audit over what is installed, or a plain word that nothing was audited.

Exit code 0: no known vulnerability; 1: some, listed; 3: not audited. pip-audit itself passes over packages of
which it finds no data, and ends well where it found none at all.
"""

import json
import subprocess
import sys

NOT_AUDITED = 3


def main() -> int:
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "pip-audit"]
    installed = subprocess.run(pip, capture_output=True, text=True)
    if installed.returncode:
        return _not_audited("pip-audit is not installed and cannot be had from here", installed.stderr)
    command = [sys.executable, "-m", "pip_audit", "--local", "--skip-editable", "--progress-spinner", "off"]
    audit = subprocess.run([*command, "--format", "json"], capture_output=True, text=True)
    try:
        found = json.loads(audit.stdout)["dependencies"]
    except (ValueError, KeyError):
        return _not_audited("its data cannot be reached", audit.stderr)
    skipped = [one for one in found if "skip_reason" in one]
    if len(skipped) == len(found):
        reasons = {one["skip_reason"] for one in skipped}
        return _not_audited("no data of any package can be reached", min(reasons, default=""))
    bad = [(one, fault) for one in found for fault in one.get("vulns", ())]
    for one, fault in bad:
        mended = ", ".join(fault["fix_versions"]) or "no version yet"
        print(f"{one['name']} {one['version']}: {fault['id']}, mended in {mended}")
    if skipped:
        print(f"not audited, since nothing is known of them: {', '.join(one['name'] for one in skipped)}")
    print(f"{len(found) - len(skipped)} packages audited, {len(bad)} known vulnerabilities")
    return 1 if bad else 0


def _not_audited(why: str, said: str) -> int:
    last = (said.strip().splitlines() or ["it said nothing"])[-1]
    print(f"NOT AUDITED: {why} ({last[:200]})", file=sys.stderr)
    return NOT_AUDITED


if __name__ == "__main__":
    raise SystemExit(main())
