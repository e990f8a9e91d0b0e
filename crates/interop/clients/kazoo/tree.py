"""Nodes and their stats, transactions, access control, four-letter words."""

from kazoo.exceptions import (
    AuthFailedError,
    BadArgumentsError,
    BadVersionError,
    InvalidACLError,
    NoAuthError,
    NoChildrenForEphemeralsError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    RolledBackError,
    RuntimeInconsistency,
)
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE, Permissions, make_acl, make_digest_acl

from harness import HOSTS, check, client, equal, fresh, node_of, raises, until, word


@check("nodes: create, get, set, delete, with versions, and the errors for what cannot be")
def nodes():
    zk, path = client(), fresh()
    raises(NoNodeError, zk.create, f"{path}/a")
    equal(zk.create(f"{path}/a", b"one", makepath=True), f"{path}/a")
    raises(NodeExistsError, zk.create, f"{path}/a")
    data, stat = zk.get(f"{path}/a")
    equal((data, stat.version, stat.dataLength, stat.ephemeralOwner), (b"one", 0, 3, 0))
    equal(zk.set(f"{path}/a", b"three", version=0).version, 1)
    raises(BadVersionError, zk.set, f"{path}/a", b"x", version=0)
    raises(BadVersionError, zk.delete, f"{path}/a", version=0)
    raises(NotEmptyError, zk.delete, path)
    equal(zk.get(f"{path}/a")[0], b"three")
    zk.delete(f"{path}/a", version=1)
    raises(NoNodeError, zk.get, f"{path}/a")
    raises(NoNodeError, zk.get_children, f"{path}/a")
    equal(zk.exists(f"{path}/a"), None)
    zk.create(f"{path}/e", ephemeral=True)
    raises(NoChildrenForEphemeralsError, zk.create, f"{path}/e/child")
    equal(zk.exists(f"{path}/e").ephemeralOwner, zk.client_id[0])
    zk.delete(path, recursive=True)
    equal(zk.exists(path), None)


@check("stat: counts, lengths, and zxids that grow in the order of changes")
def stats():
    zk, path = client(), fresh()
    zk.create(path, b"12345", makepath=True)
    made = zk.exists(path)
    equal((made.version, made.cversion, made.aversion, made.dataLength, made.numChildren), (0, 0, 0, 5, 0))
    equal((made.czxid, made.czxid), (made.mzxid, made.pzxid))
    equal(made.ctime, made.mtime)
    zk.set(path, b"")
    zk.create(f"{path}/a")
    zk.create(f"{path}/b")
    zk.delete(f"{path}/a")
    zk.set_acls(path, OPEN_ACL_UNSAFE)
    now = zk.exists(path)
    equal((now.version, now.cversion, now.aversion, now.dataLength, now.numChildren), (1, 3, 1, 0, 1))
    assert made.czxid == now.czxid < now.mzxid < now.pzxid, now
    equal(now.ctime, made.ctime)
    children, stat = zk.get_children(path, include_data=True)
    equal((children, stat), (["b"], now))


@check("sequence: ten digits, one number for each node ever made there, whoever made it")
def sequences():
    zk, path = client(), fresh()
    zk.create(path, makepath=True)
    equal(zk.create(f"{path}/n-", sequence=True), f"{path}/n-0000000000")
    equal(client().create(f"{path}/other-", sequence=True, ephemeral=True), f"{path}/other-0000000001")
    zk.create(f"{path}/plain")
    zk.delete(f"{path}/plain")
    equal(zk.create(f"{path}/n-", sequence=True), f"{path}/n-0000000003")
    equal(zk.create(f"{path}/", sequence=True), f"{path}/0000000004")
    made, stat = zk.create(f"{path}/with-", b"data", sequence=True, include_data=True)
    equal((made, stat.dataLength, stat.version), (f"{path}/with-0000000005", 4, 0))


@check("data: half a megabyte comes back as it went, more than the limit ends the connection and nothing is made")
def sizes():
    zk, path = client(), fresh()
    large = bytes(range(256)) * 2048
    zk.create(path, large, makepath=True)
    equal(zk.get(path)[0] == large, True)
    session = zk.client_id
    try:
        zk.create(f"{path}/too-large", bytes(2 * 1024 * 1024))
    except Exception as error:
        equal(type(error).__name__, "ConnectionLoss")
    else:
        raise AssertionError("two megabytes were taken")
    equal(zk.retry(zk.exists, f"{path}/too-large"), None)
    equal(zk.client_id, session)


@check("transaction: all operations take place, with their results in order and one zxid")
def transaction_succeeds():
    zk, path = client(), fresh()
    zk.create(path, b"old", makepath=True)
    zk.create(f"{path}/gone")
    work = zk.transaction()
    work.check(path, 0)
    work.create(f"{path}/new", b"1", ephemeral=True)
    work.create(f"{path}/seq-", sequence=True)
    work.set_data(path, b"changed", version=0)
    work.delete(f"{path}/gone", version=0)
    results = work.commit()
    equal(results[:3], [True, f"{path}/new", f"{path}/seq-0000000002"])
    equal((results[3].version, results[3].dataLength), (1, 7))
    equal(results[4], True)
    stats = [zk.exists(one) for one in (f"{path}/new", f"{path}/seq-0000000002")]
    equal({results[3].mzxid, stats[0].czxid, stats[1].czxid, zk.exists(path).pzxid}, {results[3].mzxid})
    equal(sorted(zk.get_children(path)), ["new", "seq-0000000002"])


@check("transaction: none takes place where one fails: 0 before it, its code, then RuntimeInconsistency")
def transaction_fails():
    zk, path = client(), fresh()
    zk.create(path, b"old", makepath=True)
    work = zk.transaction()
    work.create(f"{path}/a")
    work.set_data(path, b"new")
    work.check(f"{path}/a", 7)
    work.delete(f"{path}/nothing")
    kinds = [type(one) for one in work.commit()]
    equal(kinds, [RolledBackError, RolledBackError, BadVersionError, RuntimeInconsistency])
    for broken, kind in (
        (lambda t: t.delete(f"{path}/nothing"), NoNodeError),
        (lambda t: t.create(path), NodeExistsError),
        (lambda t: t.set_data(path, b"", version=9), BadVersionError),
        (lambda t: t.check(f"{path}/nothing", 0), NoNodeError),
    ):
        work = zk.transaction()
        broken(work)
        equal([type(one) for one in work.commit()], [kind])
    equal(zk.get_children(path), [])
    equal((zk.get(path)[0], zk.exists(path).version, zk.exists(path).cversion), (b"old", 0, 0))


@check("transaction: later operations see what earlier ones did")
def transaction_builds_up():
    zk, path = client(), fresh()
    zk.ensure_path(path)
    with zk.transaction() as work:
        work.create(f"{path}/a")
        work.create(f"{path}/a/b")
        work.set_data(f"{path}/a", b"x", version=0)
        work.check(f"{path}/a", 1)
        work.delete(f"{path}/a/b")
        work.delete(f"{path}/a", version=1)
    equal(work.committed, True)
    equal((zk.get_children(path), zk.exists(path).cversion), ([], 2))


@check("acl: digest: who knows the password may, everybody else gets NoAuthError")
def acl_digest():
    path = fresh()
    anybody, owner = client(), client()
    owner.ensure_path(path)
    acl = make_digest_acl("bob", "secret", all=True)
    equal(acl.id.id, "bob:" + acl.id.id.split(":")[1])
    owner.create(f"{path}/p", b"private", acl=[acl])
    for refused in (
        lambda: anybody.get(f"{path}/p"),
        lambda: anybody.set(f"{path}/p", b""),
        lambda: anybody.get_children(f"{path}/p"),
        lambda: anybody.create(f"{path}/p/c"),
        lambda: anybody.set_acls(f"{path}/p", OPEN_ACL_UNSAFE),
        lambda: anybody.get_acls(f"{path}/p"),
        lambda: owner.get(f"{path}/p"),
    ):
        raises(NoAuthError, refused)
    equal(anybody.exists(f"{path}/p").dataLength, 7)
    owner.add_auth("digest", "bob:secret")
    equal(owner.get(f"{path}/p")[0], b"private")
    equal(owner.get_acls(f"{path}/p")[0], [acl])
    owner.create(f"{path}/p/c")
    raises(NoAuthError, anybody.delete, f"{path}/p/c")
    # Deletion needs the right on the parent.
    anybody.add_auth("digest", "bob:wrong")
    raises(NoAuthError, anybody.get, f"{path}/p")
    owner.delete(f"{path}/p/c")
    anybody.delete(f"{path}/p")


@check("acl: auth: stored as who made it; without authentication InvalidACL, and so is an empty list")
def acl_auth():
    path = fresh()
    anybody = client()
    anybody.ensure_path(path)
    raises(InvalidACLError, anybody.create, f"{path}/a", acl=CREATOR_ALL_ACL)
    raises(InvalidACLError, anybody.set_acls, path, [])
    raises(InvalidACLError, anybody.create, f"{path}/a", acl=[make_acl("nonsense", "x", all=True)])
    owner = client(auth_data=[("digest", "eve:pw")], default_acl=CREATOR_ALL_ACL)
    owner.create(f"{path}/a", b"hers")
    acls, stat = owner.get_acls(f"{path}/a")
    equal((acls, stat.aversion), ([make_digest_acl("eve", "pw", all=True)], 0))
    raises(NoAuthError, anybody.get, f"{path}/a")
    reader = make_acl("world", "anyone", read=True)
    equal(owner.set_acls(f"{path}/a", [reader, *acls], version=0).aversion, 1)
    raises(BadVersionError, owner.set_acls, f"{path}/a", acls, version=0)
    equal(anybody.get(f"{path}/a")[0], b"hers")
    raises(NoAuthError, anybody.set, f"{path}/a", b"")
    shown = anybody.get_acls(f"{path}/a")[0]
    expected = [(Permissions.READ, "world", "anyone"), (Permissions.ALL, "digest", "eve:x")]
    equal([(one.perms, one.id.scheme, one.id.id) for one in shown], expected)


@check("acl: an unknown scheme of authentication ends in AuthFailedError")
def auth_fails():
    zk = client()
    raises(AuthFailedError, zk.add_auth, "kerberos-of-nowhere", "bob")


@check("acl: ip: by address and by network")
def acl_ip():
    zk, path = client(), fresh()
    zk.ensure_path(path)
    zk.create(f"{path}/here", b"x", acl=[make_acl("ip", "127.0.0.0/8", all=True)])
    zk.create(f"{path}/there", b"x", acl=[make_acl("ip", "10.1.2.3", all=True)])
    equal(zk.get(f"{path}/here")[0], b"x")
    raises(NoAuthError, zk.get, f"{path}/there")


@check("config: /zookeeper/config names each member with the address of its clients, and quota is readable")
def config():
    zk = client()
    data, _ = zk.get("/zookeeper/config")
    lines = data.decode().splitlines()
    equal([line.split(";")[1] for line in lines[:-1]], HOSTS)
    equal([line.split("=")[0] for line in lines[:-1]], ["server.1", "server.2", "server.3"])
    equal(lines[-1].startswith("version="), True)
    equal(sorted(zk.get_children("/zookeeper")), ["config", "quota"])
    equal("zookeeper" in zk.get_children("/"), True)


@check("chroot: a client below a path sees its own root, and its watches its own paths")
def chroot():
    path = fresh()
    client().ensure_path(path)
    below, seen = client(hosts=",".join(HOSTS) + path), []
    equal(below.exists("/x", watch=seen.append), None)
    equal(below.create("/x"), "/x")
    equal((below.get_children("/"), client().get_children(path)), (["x"], ["x"]))
    until(lambda: seen, "the watch fires")
    equal([event.path for event in seen], ["/x"])


@check("words: ruok, srvr, mntr, envi, conf, isro, stat, cons, wchs, dump say what tools look for")
def words():
    zk, path = client(), fresh()
    here = node_of(zk)
    zk.create(path, ephemeral=True, makepath=True)
    zk.exists(path, watch=lambda _event: None)
    equal(zk.command(b"ruok"), "imok")
    equal(zk.command(b"isro"), "rw")
    equal(zk.server_version(), (3, 9, 1))
    modes = [line for node in (1, 2, 3) for line in word(node, "srvr").splitlines() if line.startswith("Mode: ")]
    equal(sorted(modes), ["Mode: follower", "Mode: follower", "Mode: leader"])
    figures = dict(line.split("\t") for line in word(here, "mntr").splitlines())
    equal(figures["zk_version"].startswith("3.9.1"), True)
    equal(int(figures["zk_ephemerals_count"]) >= 1 and int(figures["zk_watch_count"]) >= 1, True)
    conf = dict(line.split("=") for line in word(here, "conf").splitlines())
    equal((conf["tickTime"], conf["minSessionTimeout"], conf["maxSessionTimeout"]), ("2000", "4000", "40000"))
    name = f"{zk.client_id[0]:#x}"
    equal(name in word(here, "cons"), True)
    equal("Clients:\n" in word(here, "stat"), True)
    equal(f"{name}:\n\t{path}\n" in word(here, "dump"), True)
    equal(f"{path}\n\t{name}\n" in word(here, "wchp"), True)
    equal(f"{name}\n\t{path}\n" in word(here, "wchc"), True)
    equal("connections watching" in word(here, "wchs"), True)


@check("paths: what is no path is refused by the server with BadArguments")
def bad_paths():
    zk = client()
    raises(BadArgumentsError, zk.create, "/interop-a/\x00b")
    raises(BadArgumentsError, zk.create, "/zookeeper\x7f")
