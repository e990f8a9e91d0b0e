"""kazoo, Curator and zkCli over TLS, where access control is enforced: known by a digest, by a certificate, or not at
all. The cluster's ZooKeeper listeners take clients without a certificate (`client_certificates = "optional"`).

Two principals have a role each, for locks and nodes below a name of their own. Either is refused below the other's.

The arguments are the command that starts Java with Curator. `INTEROP_CLUSTER_DIR` has the certificates of the cluster.
"""

import json
import logging
import os
import pathlib
import re
import subprocess
import sys
import tempfile

CLIENTS = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(CLIENTS / "kazoo"), str(CLIENTS / "zkcli")]

from kazoo.client import KazooClient  # noqa: E402
from kazoo.exceptions import NoAuthError  # noqa: E402
from kazoo.handlers.threading import KazooTimeoutError  # noqa: E402

from harness import HOSTS, KAZOO_VERSION, PATIENCE_S, check, client, equal, main, raises  # noqa: E402
from interop_zkcli import Shell  # noqa: E402

JAVA = sys.argv[1:]
LOCKKEEPER = os.environ["LOCKKEEPER_BIN"]
ENDPOINT = os.environ["INTEROP_ENDPOINT"]
# The class path of zkCli.sh, with the parts of Netty that Debian's zookeeper.jar does not name.
ZKCLI_CLASSPATH = os.environ["INTEROP_ZKCLI_CLASSPATH"]
CERTS = pathlib.Path(os.environ["INTEROP_CLUSTER_DIR"]) / "certs"
AUTHORITY = str(CERTS / "authority.pem")

# The common name of a certificate, and the user of a digest.
BILLING, SHIPPING = "billing", "shipping"
CREDENTIALS = f"{SHIPPING}:secret"
# How long a client that cannot get in is given.
REFUSED_WITHIN_S = 2.0

# kazoo logs each attempt to connect, which one check makes in vain.
logging.getLogger("kazoo").setLevel(logging.CRITICAL)


def run(*command):
    """Runs a command and returns its standard output."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    equal(done.returncode, 0, f"exit code of {command[0]}, which printed {done.stdout[-500:]}{done.stderr[-500:]}; it")
    return done.stdout


# Identities.


def curl(path, *options):
    """A call of the HTTP API by the operator of the cluster."""
    operator = ["--cert", f"{CERTS}/client-operator.pem", "--key", f"{CERTS}/client-operator.key"]
    command = ["curl", "--fail-with-body", "-sS", "--cacert", AUTHORITY, *operator, *options]
    return json.loads(run(*command, ENDPOINT + path))


def change(what):
    """Changes access control."""
    return curl("/v1/access", "-H", "content-type: application/json", "-d", json.dumps(what))


def role(name, principal):
    """Lets a principal use the locks and nodes of a name."""
    locks = {"resource": "locks", "prefix": f"secure/{name}", "rights": ["acquire"]}
    nodes = {"resource": "nodes", "prefix": f"/secure-{name}", "rights": ["read", "write"]}
    change({"put_role": {"name": name, "rules": [locks, nodes]}})
    change({"grant": {"principal": principal, "role": name}})


def enforce():
    """Makes the certificate, the roles and the grants, and enables access control."""
    run(LOCKKEEPER, "certs", "client", "--dir", str(CERTS), "--name", BILLING)
    role(BILLING, BILLING)
    # The cluster says how the principal of a digest is written.
    known = curl("/v1/access/me", "-u", CREDENTIALS)["principals"]
    role(SHIPPING, next(name for name in known if name.startswith("digest:")))
    change({"enable": {}})


# Files for Java. The stores are PKCS12 for Curator and PEM for zkCli.


def pkcs12():
    """Key store and trust store, and the file with their password."""
    password, keys, trusted = CERTS / "password", CERTS / "client-billing.p12", CERTS / "authority.p12"
    if not trusted.exists():
        password.touch(mode=0o600)
        password.write_text("store-password")
        pair = ["-in", f"{CERTS}/client-billing.pem", "-inkey", f"{CERTS}/client-billing.key"]
        run("openssl", "pkcs12", "-export", *pair, "-out", str(keys), "-passout", f"file:{password}")
        run("keytool", "-importcert", "-noprompt", "-alias", "authority", "-file", AUTHORITY, "-storetype", "PKCS12",
            "-keystore", str(trusted), "-storepass:file", str(password))
    return keys, trusted, password


def pem():
    """The certificate with its key in one file, which ZooKeeper takes for a key store."""
    both = CERTS / "client-billing-both.pem"
    both.touch(mode=0o600)
    both.write_text("".join((CERTS / f"client-billing.{part}").read_text() for part in ["pem", "key"]))
    return both


def properties(trusted, keys=None, password=None):
    """Options of the JVM for ZooKeeper's client."""
    given = {
        "client.secure": "true",
        "clientCnxnSocket": "org.apache.zookeeper.ClientCnxnSocketNetty",
        "ssl.trustStore.location": trusted,
        "ssl.trustStore.passwordPath": password,
        "ssl.keyStore.location": keys,
        "ssl.keyStore.passwordPath": password if keys else None,
    }
    return [f"-Dzookeeper.{name}={value}" for name, value in given.items() if value]


# kazoo.


def tls(**more):
    """A kazoo client over TLS that also verifies the name of the host."""
    return client(use_ssl=True, ca=AUTHORITY, check_hostname=True, **more)


def by_certificate():
    return tls(certfile=f"{CERTS}/client-billing.pem", keyfile=f"{CERTS}/client-billing.key")


def by_digest():
    return tls(auth_data=[("digest", CREDENTIALS)])


def kazoo_may(connect, mine):
    """Two sessions of one principal take turns at a lock of its role."""
    first, second = connect(), connect()
    path = f"/locks/secure/{mine}/kazoo"
    held, rival = first.Lock(path), second.Lock(path)
    equal(held.acquire(timeout=PATIENCE_S), True, "the first session's turn")
    equal(rival.acquire(blocking=False), False, "a second session's try")
    first.create(f"/secure-{mine}/kazoo", b"data", makepath=True)
    equal(first.get(f"/secure-{mine}/kazoo")[0], b"data", "data")
    held.release()
    equal(rival.acquire(timeout=PATIENCE_S), True, "the second session's turn")
    rival.release()
    return first


def kazoo_may_not(zk, other):
    """Locks, nodes and lists of another's name are refused, whether they exist or not."""
    raises(NoAuthError, zk.Lock(f"/locks/secure/{other}/kazoo").acquire, timeout=PATIENCE_S)
    raises(NoAuthError, zk.create, f"/secure-{other}")
    raises(NoAuthError, zk.get, f"/secure-{other}/kazoo")
    raises(NoAuthError, zk.get_children, "/locks")


@check("kazoo known by a digest: takes a lock of its role, and gets NoAuthError outside of it")
def kazoo_digest():
    kazoo_may_not(kazoo_may(by_digest, SHIPPING), BILLING)


@check("kazoo known by its certificate: takes a lock of its role, and gets NoAuthError outside of it")
def kazoo_certificate():
    kazoo_may_not(kazoo_may(by_certificate, BILLING), SHIPPING)


@check("kazoo with neither: has a session, and gets NoAuthError for everything")
def kazoo_neither():
    zk = tls()
    for name in (BILLING, SHIPPING):
        kazoo_may_not(zk, name)


def no_session(**options):
    zk = KazooClient(hosts=HOSTS[0], **options)
    try:
        raises(KazooTimeoutError, zk.start, timeout=REFUSED_WITHIN_S)
    finally:
        zk.stop()
        zk.close()


@check("kazoo without TLS, or with the certificate of another authority: gets no session")
def kazoo_refused():
    # The same host serves others.
    tls(hosts=HOSTS[0])
    no_session()
    with tempfile.TemporaryDirectory() as others:
        run(LOCKKEEPER, "certs", "init", "--dir", f"{others}/certs", "--cluster", "local")
        run(LOCKKEEPER, "certs", "client", "--dir", f"{others}/certs", "--name", BILLING)
        own = dict(certfile=f"{others}/certs/client-billing.pem", keyfile=f"{others}/certs/client-billing.key")
        no_session(use_ssl=True, ca=AUTHORITY, check_hostname=True, **own)


# Curator.


def curator(options, *arguments):
    run(*JAVA, *options, "Secure", *arguments)


@check("curator known by a digest: takes a lock of its role, and gets NoAuth outside of it")
def curator_digest():
    _, trusted, password = pkcs12()
    curator(properties(trusted, password=password), SHIPPING, BILLING, CREDENTIALS)


@check("curator known by its certificate: takes a lock of its role, and gets NoAuth outside of it")
def curator_certificate():
    keys, trusted, password = pkcs12()
    curator(properties(trusted, keys, password), BILLING, SHIPPING)


@check("curator with neither: has a session, and gets NoAuth for everything")
def curator_neither():
    _, trusted, password = pkcs12()
    curator(properties(trusted, password=password), "-", BILLING)


# zkCli.


def shell(keys=None):
    opened = Shell(["-cp", ZKCLI_CLASSPATH, *properties(AUTHORITY, keys)])
    # The welcome messages.
    opened.type("")
    return opened


def zkcli_may(opened, mine, shown):
    equal(shown in opened.type("whoami"), True, f"whoami shows {shown}")
    queue = f"/locks/secure/{mine}/zkcli"
    for directory in ["/locks", "/locks/secure", f"/locks/secure/{mine}", queue, f"/secure-{mine}"]:
        # It may exist already.
        opened.type(f"create {directory}")
    request = opened.type(f"create -e -s {queue}/lock-")
    equal(bool(re.fullmatch(rf"Created {queue}/lock-\d{{10}}", "\n".join(request))), True, f"{request} for a lock")
    equal(opened.type(f"create /secure-{mine}/zkcli data"), [f"Created /secure-{mine}/zkcli"])
    equal(opened.type(f"get /secure-{mine}/zkcli"), ["data"])


def zkcli_may_not(opened, other):
    for command, path in [("create", f"/secure-{other}"), ("get", f"/secure-{other}/zkcli"), ("ls", "/locks")]:
        equal(opened.type(f"{command} {path}"), [f"Insufficient permission : {path}"])


@check("zkcli with neither gets refused everything, and after addauth digest uses the locks and nodes of its role")
def zkcli_digest():
    opened = shell()
    zkcli_may_not(opened, SHIPPING)
    opened.type(f"addauth digest {CREDENTIALS}")
    zkcli_may(opened, SHIPPING, f"digest: {SHIPPING}")
    zkcli_may_not(opened, BILLING)
    opened.quit()


@check("zkcli known by its certificate: uses the locks and nodes of its role, and is refused outside of it")
def zkcli_certificate():
    opened = shell(pem())
    zkcli_may(opened, BILLING, f"cert: {BILLING}")
    zkcli_may_not(opened, SHIPPING)
    opened.quit()


if __name__ == "__main__":
    enforce()
    library = re.search(r"curator-recipes-([0-9.]+)\.jar", " ".join(JAVA))
    version = f"kazoo {KAZOO_VERSION}, Curator {library[1] if library else '?'}, zkCli"
    sys.exit(1 if main(label="secure", version=version) else 0)
