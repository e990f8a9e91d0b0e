// Tests node-zookeeper-client against a cluster: prints one line per check, then their count. Checks have their expected
// values and wait for conditions. NODE_PATH has the library; INTEROP_* gives the cluster.
'use strict';

const assert = require('node:assert').strict;
const { execFileSync } = require('node:child_process');
const { promisify } = require('node:util');
const zookeeper = require('node-zookeeper-client');
const version = require('node-zookeeper-client/package.json').version;

const { Exception, Event, State, CreateMode, ACL, Id, Permission } = zookeeper;
const HOSTS = process.env.INTEROP_HOSTS.split(',');
const PATIENCE_MS = 30000;
const CHECK_LIMIT_MS = 120000;

const clients = [];
const checks = [];
let numbers = 0;

function check(name, run) {
    checks.push({ name, run });
}

function fresh() {
    numbers += 1;
    return `/node-${process.pid}-${numbers}`;
}

async function until(condition, what) {
    const end = Date.now() + PATIENCE_MS;
    while (!condition()) {
        assert(Date.now() < end, `not yet after ${PATIENCE_MS} ms: ${what}`);
        await new Promise((go) => setTimeout(go, 20));
    }
}

// The client with its calls as promises, and its connection's events.
class Zk {
    constructor(hosts, options) {
        this.raw = zookeeper.createClient(hosts || HOSTS.join(','), { sessionTimeout: 10000, spinDelay: 50, retries: 0, ...options });
        this.states = [];
        this.raw.on('state', (state) => this.states.push(state));
        for (const name of ['create', 'remove', 'setData', 'getACL', 'setACL', 'exists', 'getData', 'getChildren', 'mkdirp']) {
            this[name] = promisify(this.raw[name]).bind(this.raw);
        }
        // It has two results.
        this.read = (path, watcher) => new Promise((resolve, reject) => {
            this.raw.getData(path, watcher || (() => {}), (error, data, stat) => (error ? reject(error) : resolve({ data, stat })));
        });
        this.children = (path, watcher) => new Promise((resolve, reject) => {
            this.raw.getChildren(path, watcher || (() => {}), (error, names, stat) => (error ? reject(error) : resolve({ names, stat })));
        });
        this.acl = (path) => new Promise((resolve, reject) => {
            this.raw.getACL(path, (error, acls, stat) => (error ? reject(error) : resolve({ acls, stat })));
        });
        clients.push(this);
    }

    get state() {
        return this.raw.getState();
    }

    get session() {
        return this.raw.getSessionId().toString('hex');
    }

    // The member that it is connected to.
    get node() {
        const socket = this.raw.connectionManager.socket;
        return HOSTS.indexOf(`${socket.remoteAddress}:${socket.remotePort}`) + 1;
    }

    // A read barrier: the library has no sync, but reads come after an own change in order.
    async barrier() {
        await this.create(fresh());
    }

    // Without closing the session, as if its process had died.
    vanish() {
        this.raw.connectionManager.state = -2;
        this.raw.connectionManager.connect = () => {};
        this.raw.connectionManager.socket.destroy();
    }
}

async function connect(hosts, options) {
    const zk = new Zk(hosts, options);
    zk.raw.connect();
    await until(() => zk.state === State.SYNC_CONNECTED, 'connected');
    return zk;
}

async function fails(code, promise) {
    try {
        await promise;
    } catch (error) {
        assert.equal(error.name, code);
        return;
    }
    assert.fail(`expected ${code}, but it was done`);
}

function cluster(what, node) {
    execFileSync(process.env.INTEROP_CLUSTER_SCRIPT, [what, String(node), '--dir', process.env.INTEROP_CLUSTER_DIR], { stdio: 'ignore' });
}

const told = (list) => (event) => list.push(`${event.getName()} ${event.getPath()}`);

check('nodes: create, read, write, remove, with versions, and the errors for what cannot be', async () => {
    const zk = await connect();
    const root = fresh();
    assert.equal(await zk.create(root, Buffer.from('one')), root);
    await fails('NODE_EXISTS', zk.create(root));
    await fails('NO_NODE', zk.create(`${root}/a/b`));
    const { data, stat } = await zk.read(root);
    assert.equal(data.toString(), 'one');
    assert.equal(stat.version, 0);
    assert.equal(stat.dataLength, 3);
    assert.deepEqual(stat.czxid, stat.mzxid);
    assert.equal((await zk.setData(root, Buffer.from('other'), 0)).version, 1);
    await fails('BAD_VERSION', zk.setData(root, Buffer.from('late'), 0));
    await zk.create(`${root}/a`);
    await fails('NOT_EMPTY', zk.remove(root));
    await fails('BAD_VERSION', zk.remove(`${root}/a`, 3));
    await zk.remove(`${root}/a`, 0);
    assert.equal(await zk.exists(`${root}/a`), null);
    await fails('NO_NODE', zk.read(`${root}/a`));
    await zk.mkdirp(`${root}/x/y/z`);
    assert.deepEqual((await zk.children(`${root}/x/y`)).names, ['z']);
});

check('modes: sequential and ephemeral nodes, their names and owner, and that they go with the session', async () => {
    const zk = await connect();
    const other = await connect();
    const root = fresh();
    await zk.create(root);
    assert.equal(await zk.create(`${root}/s-`, CreateMode.PERSISTENT_SEQUENTIAL), `${root}/s-0000000000`);
    assert.equal(await zk.create(`${root}/es-`, CreateMode.EPHEMERAL_SEQUENTIAL), `${root}/es-0000000001`);
    assert.equal(await zk.create(`${root}/e`, CreateMode.EPHEMERAL), `${root}/e`);
    await fails('NO_CHILDREN_FOR_EPHEMERALS', zk.create(`${root}/e/child`));
    const stat = await zk.exists(`${root}/e`);
    assert.equal(stat.ephemeralOwner.toString('hex'), zk.session);
    const gone = [];
    await other.barrier();
    assert.notEqual(await other.exists(`${root}/e`, told(gone)), null);
    zk.raw.close();
    await until(() => gone.length > 0, 'the watch fires');
    assert.deepEqual(gone, [`NODE_DELETED ${root}/e`]);
    assert.deepEqual((await other.children(root)).names, ['s-0000000000']);
});

check('transaction: all or none, with the result of each', async () => {
    const zk = await connect();
    const root = fresh();
    await zk.create(root);
    const commit = (transaction) => new Promise((resolve) => {
        transaction.commit((error, results) => resolve({ error, results }));
    });
    const done = await commit(zk.raw.transaction().create(`${root}/a`, Buffer.from('1')).setData(`${root}/a`, Buffer.from('22'), 0)
        .check(`${root}/a`, 1).create(`${root}/b`).remove(`${root}/b`, 0));
    assert.equal(done.error, null);
    assert.equal(done.results.length, 5);
    assert.equal(done.results[0].path, `${root}/a`);
    assert.equal(done.results[1].stat.version, 1);
    const failed = await commit(zk.raw.transaction().setData(`${root}/a`, Buffer.from('3')).check(`${root}/a`, 9).remove(`${root}/a`));
    assert.equal(failed.error.name, 'BAD_VERSION');
    assert.deepEqual(failed.results.map((one) => one.err), [0, Exception.BAD_VERSION, Exception.RUNTIME_INCONSISTENCY]);
    assert.equal((await zk.exists(`${root}/a`)).version, 1);
});

check('acl: digest: who is authenticated may, everybody else may not', async () => {
    const owner = await connect();
    const anybody = await connect();
    const root = fresh();
    owner.raw.addAuthInfo('digest', Buffer.from('bob:secret'));
    await owner.create(root, Buffer.from('x'), ACL.CREATOR_ALL_ACL);
    const { acls, stat } = await owner.acl(root);
    assert.deepEqual(acls.map((acl) => [acl.permission, acl.id.scheme, acl.id.id]),
        [[Permission.ALL, 'digest', 'bob:fyVmFCwVbTJYrznoSu1koqYEYF0=']]);
    assert.equal(stat.aversion, 0);
    await anybody.barrier();
    await fails('NO_AUTH', anybody.read(root));
    await fails('NO_AUTH', anybody.setData(root, Buffer.from('y')));
    await fails('NO_AUTH', anybody.create(`${root}/a`));
    await owner.setACL(root, [new ACL(Permission.READ, new Id('world', 'anyone'))], 0);
    await anybody.barrier();
    assert.equal((await anybody.read(root)).data.toString(), 'x');
    await fails('NO_AUTH', owner.setData(root, Buffer.from('y')));
    await fails('INVALID_ACL', anybody.create(fresh(), Buffer.from(''), ACL.CREATOR_ALL_ACL));
});

check('watches: each fires once: created, changed, deleted, children', async () => {
    const zk = await connect();
    const other = await connect();
    const root = fresh();
    const seen = [];
    await zk.create(root);
    assert.equal(await zk.exists(`${root}/a`, told(seen)), null);
    await zk.children(root, told(seen));
    await other.create(`${root}/a`);
    await until(() => seen.length === 2, 'created and child');
    assert.deepEqual(seen.sort(), [`NODE_CHILDREN_CHANGED ${root}`, `NODE_CREATED ${root}/a`]);
    seen.length = 0;
    await zk.read(`${root}/a`, told(seen));
    await other.setData(`${root}/a`, Buffer.from('1'));
    await other.setData(`${root}/a`, Buffer.from('2'));
    await until(() => seen.length === 1, 'changed');
    await zk.barrier();
    await zk.exists(`${root}/a`, told(seen));
    await other.remove(`${root}/a`);
    await until(() => seen.length === 2, 'deleted');
    assert.deepEqual(seen, [`NODE_DATA_CHANGED ${root}/a`, `NODE_DELETED ${root}/a`]);
});

check('recipe: a lock by sequential ephemeral nodes, each waiting for the one before it', async () => {
    const root = fresh();
    const order = [];
    let inside = 0;
    await (await connect()).create(root);
    const work = async (zk, name, mine) => {
        for (;;) {
            const { names } = await zk.children(root);
            names.sort();
            const place = names.indexOf(mine.slice(root.length + 1));
            assert(place >= 0, 'its node is gone');
            if (place === 0) break;
            await new Promise((resolve, reject) => {
                zk.raw.exists(`${root}/${names[place - 1]}`, () => resolve(), (error, stat) => {
                    if (error) reject(error);
                    else if (!stat) resolve();
                });
            });
        }
        inside += 1;
        assert.equal(inside, 1);
        order.push(name);
        await zk.read(root);
        inside -= 1;
        await zk.remove(mine);
    };
    const contenders = [];
    for (let name = 0; name < 8; name += 1) {
        const zk = await connect();
        const mine = await zk.create(`${root}/lock-`, CreateMode.EPHEMERAL_SEQUENTIAL);
        contenders.push(work(zk, name, mine));
    }
    await Promise.all(contenders);
    assert.deepEqual(order, [0, 1, 2, 3, 4, 5, 6, 7]);
});

check('pipeline: requests sent without waiting are answered in order', async () => {
    const zk = await connect();
    const root = fresh();
    await zk.create(root);
    const answers = [];
    const all = [];
    for (let count = 1; count <= 500; count += 1) {
        all.push(zk.setData(root, Buffer.from(String(count))).then((stat) => answers.push(stat.version)));
        if (count % 50 === 0) {
            all.push(zk.read(root).then(({ data, stat }) => {
                assert.equal(data.toString(), String(count));
                answers.push(-stat.version);
            }));
        }
    }
    await Promise.all(all);
    const expected = [];
    for (let count = 1; count <= 500; count += 1) {
        expected.push(count);
        if (count % 50 === 0) expected.push(-count);
    }
    assert.deepEqual(answers, expected);
});

check('session: goes on at another node with its password, is refused with another, and expires in silence', async () => {
    const root = fresh();
    const first = await connect(HOSTS[0], { sessionTimeout: 6000 });
    const other = await connect(HOSTS[2]);
    await first.create(root, CreateMode.EPHEMERAL);
    const identity = { sessionId: first.raw.getSessionId(), sessionPassword: first.raw.getSessionPassword(), sessionTimeout: 6000 };
    assert.equal(first.raw.getSessionTimeout(), 6000);
    first.vanish();
    const thief = new Zk(HOSTS[1], { ...identity, sessionPassword: Buffer.alloc(16, 7) });
    thief.raw.connect();
    await until(() => thief.states.includes(State.EXPIRED), 'the thief is refused');
    const heir = await connect(HOSTS[1], identity);
    assert.equal(heir.session, identity.sessionId.toString('hex'));
    assert.equal((await heir.exists(root)).ephemeralOwner.toString('hex'), heir.session);
    const gone = [];
    await other.barrier();
    assert.notEqual(await other.exists(root, told(gone)), null);
    heir.vanish();
    await until(() => gone.length > 0, 'it expires');
    assert.deepEqual(gone, [`NODE_DELETED ${root}`]);
    const late = new Zk(HOSTS[1], identity);
    late.raw.connect();
    await until(() => late.states.includes(State.EXPIRED), 'it is over');
});

check('reconnection: the attached node is killed: session and ephemeral node are kept, and no watch is lost', async () => {
    const root = fresh();
    const victim = 3;
    const zk = await connect([HOSTS[victim - 1], HOSTS[0], HOSTS[1]].join(','), { sessionTimeout: 20000 });
    // This library starts at a random host.
    while (zk.node !== victim) {
        zk.states.length = 0;
        zk.raw.connectionManager.socket.destroy();
        await until(() => zk.states.at(-1) === State.SYNC_CONNECTED, 'connected to the next');
    }
    const other = await connect(HOSTS.slice(0, 2).join(','), { retries: 8 });
    const seen = [];
    await zk.create(root);
    await zk.create(`${root}/data`);
    await zk.create(`${root}/e`, CreateMode.EPHEMERAL);
    await zk.read(`${root}/data`, told(seen));
    assert.equal(await zk.exists(`${root}/made`, told(seen)), null);
    await zk.children(root, told(seen));
    const session = zk.session;
    zk.states.length = 0;
    try {
        cluster('kill', victim);
        await other.setData(`${root}/data`, Buffer.from('new'));
        await other.create(`${root}/made`);
        await until(() => seen.length === 3, 'all three watches');
        assert.deepEqual(seen.sort(), [`NODE_CHILDREN_CHANGED ${root}`, `NODE_CREATED ${root}/made`, `NODE_DATA_CHANGED ${root}/data`]);
        await until(() => zk.state === State.SYNC_CONNECTED, 'connected again');
        assert.equal(zk.session, session);
        assert.equal((await zk.exists(`${root}/e`)).ephemeralOwner.toString('hex'), session);
        assert(!zk.states.includes(State.EXPIRED));
        assert.deepEqual(zk.states.slice(0, 2), [State.DISCONNECTED, State.SYNC_CONNECTED]);
        assert.notEqual(zk.node, victim);
    } finally {
        cluster('restart', victim);
    }
});

async function main() {
    let passed = 0;
    const asked = checks.filter(({ name }) => name.includes(process.argv[2] || ''));
    for (const { name, run } of asked) {
        let timer;
        const late = new Promise((_, reject) => {
            timer = setTimeout(() => reject(new Error(`it took more than ${CHECK_LIMIT_MS} ms`)), CHECK_LIMIT_MS);
        });
        try {
            await Promise.race([run(), late]);
            passed += 1;
            console.log(`ok node ${name}`);
        } catch (error) {
            console.log(`not ok node ${name}: ${String(error.stack).replace(/\s*\n\s*/g, ' | ')}`);
        }
        clearTimeout(timer);
        for (const zk of clients.splice(0)) {
            if (zk.state === State.SYNC_CONNECTED) zk.raw.close();
        }
    }
    console.log(`node ${version}: ${passed} of ${asked.length} checks`);
    // Clients that lost their connection keep timers running.
    process.exit(passed === asked.length ? 0 : 1);
}

main();
