"""The README's blocks in Python and Java, run as they stand there, one beside the other.

The arguments are the command that runs a Java source file.
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "kazoo"))

from harness import KAZOO_VERSION, check, equal, main  # noqa: E402

LIBRARY = re.search(r"curator-recipes-([\d.]+)\.jar", " ".join(sys.argv))
README = pathlib.Path(__file__).resolve().parents[4] / "README.md"
JAVA = sys.argv[1:]
LIMIT_S = 60


def block(language):
    found = re.findall(rf"^```{language}\n(.*?)^```", README.read_text(), re.DOTALL | re.MULTILINE)
    equal(len(found), 1, f"blocks of {language} in the README")
    return found[0]


def token_of(command, language, file):
    """Runs a block and returns the token that it prints."""
    with tempfile.TemporaryDirectory() as directory:
        source = pathlib.Path(directory, file)
        source.write_text(block(language))
        environment = {**os.environ, "ZOOKEEPER": os.environ["INTEROP_HOSTS"]}
        run = subprocess.run([*command, str(source)], env=environment, capture_output=True, text=True, timeout=LIMIT_S)
    equal(run.returncode, 0, f"exit code, with this on stderr: {run.stderr[-500:]}; it")
    said = re.fullmatch(r"write under token (\d+)\n", run.stdout)
    assert said, f"it printed {run.stdout!r}"
    return int(said[1])


@check("the README's block in Python takes the lock under a token")
def python():
    first = token_of([sys.executable], "python", "example.py")
    assert token_of([sys.executable], "python", "example.py") > first, "tokens rise"


@check("the README's block in Java takes the same lock under a larger token")
def java():
    first = token_of([sys.executable], "python", "example.py")
    assert token_of(JAVA, "java", "Example.java") > first, "tokens rise"


if __name__ == "__main__":
    version = f"kazoo {KAZOO_VERSION}, Curator {LIBRARY[1] if LIBRARY else '?'}"
    sys.exit(1 if main(label="readme", version=version) else 0)
