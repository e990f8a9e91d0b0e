/* ZooKeeper's C library (libzookeeper_mt) against a cluster: one line for each check. interop_c.py builds and starts it.
 *
 * Each check compares with what stands in it and waits for conditions. A check that goes wrong ends with a message; the next ones run. */

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zookeeper/zookeeper.h>

#define PATIENCE_MS 30000
#define MOST_EVENTS 64

static char root[64], wrong[512];
static const char *hosts;
static jmp_buf out;

#define EQUAL(seen, expected)                                                                                                      \
    do {                                                                                                                           \
        long long seen_ = (long long)(seen), expected_ = (long long)(expected);                                                    \
        if (seen_ != expected_) {                                                                                                  \
            snprintf(wrong, sizeof wrong, "line %d: %s: expected %lld, saw %lld", __LINE__, #seen, expected_, seen_);              \
            longjmp(out, 1);                                                                                                       \
        }                                                                                                                          \
    } while (0)

#define SAME(seen, expected)                                                                                                       \
    do {                                                                                                                           \
        if (strcmp(seen, expected) != 0) {                                                                                         \
            snprintf(wrong, sizeof wrong, "line %d: expected '%s', saw '%s'", __LINE__, expected, seen);                           \
            longjmp(out, 1);                                                                                                       \
        }                                                                                                                          \
    } while (0)

#define UNTIL(condition)                                                                                                           \
    do {                                                                                                                           \
        int waited_ = 0;                                                                                                           \
        for (; !(condition) && waited_ < PATIENCE_MS; waited_ += 10) usleep(10000);                                                \
        if (waited_ >= PATIENCE_MS) {                                                                                              \
            snprintf(wrong, sizeof wrong, "line %d: not yet after %d ms: %s", __LINE__, PATIENCE_MS, #condition);                  \
            longjmp(out, 1);                                                                                                       \
        }                                                                                                                          \
    } while (0)

/* What a handle was told by its watches, without news of the connection. */
struct told {
    pthread_mutex_t mutex;
    int count, types[MOST_EVENTS];
    char paths[MOST_EVENTS][128];
};

static void hear(zhandle_t *zh, int type, int state, const char *path, void *context) {
    struct told *told = context ? context : (struct told *)zoo_get_context(zh);
    (void)state;
    if (type == ZOO_SESSION_EVENT || !told) return;
    pthread_mutex_lock(&told->mutex);
    if (told->count < MOST_EVENTS) {
        told->types[told->count] = type;
        snprintf(told->paths[told->count++], sizeof told->paths[0], "%s", path);
    }
    pthread_mutex_unlock(&told->mutex);
}

static struct told *listener(void) {
    struct told *told = calloc(1, sizeof *told);
    pthread_mutex_init(&told->mutex, NULL);
    return told;
}

static int heard(struct told *told) {
    pthread_mutex_lock(&told->mutex);
    int count = told->count;
    pthread_mutex_unlock(&told->mutex);
    return count;
}

/* How often a listener was told this. */
static int times(struct told *told, int type, const char *path) {
    int count = 0;
    pthread_mutex_lock(&told->mutex);
    for (int at = 0; at < told->count; at++) count += told->types[at] == type && strcmp(told->paths[at], path) == 0;
    pthread_mutex_unlock(&told->mutex);
    return count;
}

static zhandle_t *open_at(const char *where, int timeout_ms, const clientid_t *known, struct told *told) {
    return zookeeper_init(where, hear, timeout_ms, known, told, 0);
}

static zhandle_t *connected(void) {
    zhandle_t *zh = open_at(hosts, 10000, NULL, NULL);
    UNTIL(zoo_state(zh) == ZOO_CONNECTED_STATE);
    return zh;
}

/* The n-th host of the list, from 1. */
static const char *host(int number) {
    static char one[128];
    const char *at = hosts;
    while (--number) at = strchr(at, ',') + 1;
    snprintf(one, sizeof one, "%.*s", (int)strcspn(at, ","), at);
    return one;
}

static const char *under(const char *name) {
    static char paths[8][128];
    static int next;
    char *path = paths[next++ % 8];
    snprintf(path, sizeof paths[0], "%s%s", root, name);
    return path;
}

static void make(zhandle_t *zh, const char *path) {
    EQUAL(zoo_create(zh, path, "", 0, &ZOO_OPEN_ACL_UNSAFE, ZOO_PERSISTENT, NULL, 0), ZOK);
}

static void cluster(const char *what, int node) {
    char command[512];
    snprintf(command, sizeof command, "\"$INTEROP_CLUSTER_SCRIPT\" %s %d --dir \"$INTEROP_CLUSTER_DIR\" >&2", what, node);
    EQUAL(system(command), 0);
}

static void nodes(void) {
    zhandle_t *zh = connected();
    char data[64], name[128];
    int length = sizeof data;
    struct Stat stat;
    make(zh, root);
    EQUAL(zoo_create2(zh, under("/a"), "one", 3, &ZOO_OPEN_ACL_UNSAFE, ZOO_PERSISTENT, name, sizeof name, &stat), ZOK);
    SAME(name, under("/a"));
    EQUAL(stat.dataLength, 3);
    EQUAL(stat.czxid, stat.mzxid);
    EQUAL(zoo_create(zh, under("/a"), "", 0, &ZOO_OPEN_ACL_UNSAFE, ZOO_PERSISTENT, NULL, 0), ZNODEEXISTS);
    EQUAL(zoo_create(zh, under("/x/y"), "", 0, &ZOO_OPEN_ACL_UNSAFE, ZOO_PERSISTENT, NULL, 0), ZNONODE);
    EQUAL(zoo_get(zh, under("/a"), 0, data, &length, &stat), ZOK);
    EQUAL(length, 3);
    EQUAL(memcmp(data, "one", 3), 0);
    EQUAL(zoo_set2(zh, under("/a"), "other", 5, 0, &stat), ZOK);
    EQUAL(stat.version, 1);
    EQUAL(zoo_set(zh, under("/a"), "late", 4, 0), ZBADVERSION);
    EQUAL(zoo_delete(zh, root, -1), ZNOTEMPTY);
    EQUAL(zoo_delete(zh, under("/a"), 0), ZBADVERSION);
    EQUAL(zoo_delete(zh, under("/a"), 1), ZOK);
    EQUAL(zoo_exists(zh, under("/a"), 0, &stat), ZNONODE);
    /* A node whose data is null, not empty. */
    EQUAL(zoo_create(zh, under("/null"), NULL, -1, &ZOO_OPEN_ACL_UNSAFE, ZOO_PERSISTENT, NULL, 0), ZOK);
    length = sizeof data;
    EQUAL(zoo_get(zh, under("/null"), 0, data, &length, &stat), ZOK);
    EQUAL(length, -1);
    EQUAL(stat.dataLength, 0);
    zookeeper_close(zh);
}

static void modes(void) {
    zhandle_t *zh = connected(), *other = connected();
    char name[128];
    struct Stat stat;
    struct String_vector children;
    make(zh, root);
    EQUAL(zoo_create(zh, under("/s-"), "", 0, &ZOO_OPEN_ACL_UNSAFE, ZOO_PERSISTENT_SEQUENTIAL, name, sizeof name), ZOK);
    SAME(name, under("/s-0000000000"));
    EQUAL(zoo_create(zh, under("/e"), "", 0, &ZOO_OPEN_ACL_UNSAFE, ZOO_EPHEMERAL, name, sizeof name), ZOK);
    EQUAL(zoo_create(zh, under("/e/child"), "", 0, &ZOO_OPEN_ACL_UNSAFE, ZOO_PERSISTENT, NULL, 0), ZNOCHILDRENFOREPHEMERALS);
    EQUAL(zoo_create(zh, under("/es-"), "", 0, &ZOO_OPEN_ACL_UNSAFE, ZOO_EPHEMERAL_SEQUENTIAL, name, sizeof name), ZOK);
    SAME(name, under("/es-0000000002"));
    EQUAL(zoo_create(zh, under("/c"), "", 0, &ZOO_OPEN_ACL_UNSAFE, ZOO_CONTAINER, NULL, 0), ZOK);
    EQUAL(zoo_create_ttl(zh, under("/t"), "", 0, &ZOO_OPEN_ACL_UNSAFE, ZOO_PERSISTENT_WITH_TTL, 600000, NULL, 0), ZOK);
    EQUAL(zoo_create2_ttl(zh, under("/ts-"), "", 0, &ZOO_OPEN_ACL_UNSAFE, ZOO_PERSISTENT_SEQUENTIAL_WITH_TTL, 600000, name,
                          sizeof name, &stat), ZOK);
    SAME(name, under("/ts-0000000005"));
    EQUAL(zoo_exists(zh, under("/e"), 0, &stat), ZOK);
    EQUAL(stat.ephemeralOwner, zoo_client_id(zh)->client_id);
    EQUAL(zoo_get_children2(zh, root, 0, &children, &stat), ZOK);
    EQUAL(children.count, 6);
    EQUAL(stat.numChildren, 6);
    EQUAL(stat.cversion, 6);
    deallocate_String_vector(&children);
    zookeeper_close(zh);
    /* The other may stand behind, until it asks for the present. */
    UNTIL(zoo_exists(other, under("/e"), 0, &stat) == ZNONODE);
    EQUAL(zoo_get_children(other, root, 0, &children), ZOK);
    EQUAL(children.count, 4);
    deallocate_String_vector(&children);
    zookeeper_close(other);
}

static volatile int answered;

static void authenticated(int code, const void *data) {
    *(int *)data = code;
    answered = 1;
}

static void access_control(void) {
    zhandle_t *owner = connected(), *anybody = connected();
    char data[16];
    int length = sizeof data, code = 1;
    struct ACL_vector acl;
    struct Stat stat;
    make(owner, root);
    EQUAL(zoo_create(owner, under("/p"), "x", 1, &ZOO_CREATOR_ALL_ACL, ZOO_PERSISTENT, NULL, 0), ZINVALIDACL);
    answered = 0;
    EQUAL(zoo_add_auth(owner, "digest", "bob:secret", 10, authenticated, &code), ZOK);
    UNTIL(answered);
    EQUAL(code, ZOK);
    EQUAL(zoo_create(owner, under("/p"), "x", 1, &ZOO_CREATOR_ALL_ACL, ZOO_PERSISTENT, NULL, 0), ZOK);
    EQUAL(zoo_get(anybody, under("/p"), 0, data, &length, &stat), ZNOAUTH);
    EQUAL(zoo_set(anybody, under("/p"), "y", 1, -1), ZNOAUTH);
    EQUAL(zoo_get_acl(owner, under("/p"), &acl, &stat), ZOK);
    EQUAL(acl.count, 1);
    EQUAL(acl.data[0].perms, ZOO_PERM_ALL);
    SAME(acl.data[0].id.scheme, "digest");
    SAME(acl.data[0].id.id, "bob:fyVmFCwVbTJYrznoSu1koqYEYF0=");
    deallocate_ACL_vector(&acl);
    EQUAL(zoo_set_acl(owner, under("/p"), 7, &ZOO_READ_ACL_UNSAFE), ZBADVERSION);
    EQUAL(zoo_set_acl(owner, under("/p"), 0, &ZOO_READ_ACL_UNSAFE), ZOK);
    EQUAL(zoo_get(anybody, under("/p"), 0, data, &length, &stat), ZOK);
    EQUAL(zoo_set(owner, under("/p"), "y", 1, -1), ZNOAUTH);
    zookeeper_close(owner);
    zookeeper_close(anybody);
}

static void multis(void) {
    zhandle_t *zh = connected();
    char name[128], sequential[128];
    struct Stat stat;
    zoo_op_t ops[4];
    zoo_op_result_t results[4] = {{0}};
    make(zh, root);
    zoo_create_op_init(&ops[0], under("/a"), "1", 1, &ZOO_OPEN_ACL_UNSAFE, ZOO_PERSISTENT, name, sizeof name);
    zoo_create_op_init(&ops[1], under("/s-"), "", 0, &ZOO_OPEN_ACL_UNSAFE, ZOO_EPHEMERAL_SEQUENTIAL, sequential, sizeof sequential);
    zoo_set_op_init(&ops[2], under("/a"), "22", 2, 0, &stat);
    zoo_check_op_init(&ops[3], under("/a"), 1);
    EQUAL(zoo_multi(zh, 4, ops, results), ZOK);
    SAME(name, under("/a"));
    SAME(sequential, under("/s-0000000001"));
    EQUAL(stat.version, 1);
    EQUAL(stat.dataLength, 2);
    for (int at = 0; at < 4; at++) EQUAL(results[at].err, ZOK);
    zoo_set_op_init(&ops[0], under("/a"), "3", 1, 1, &stat);
    zoo_delete_op_init(&ops[1], under("/nothing"), -1);
    zoo_check_op_init(&ops[2], under("/a"), 1);
    EQUAL(zoo_multi(zh, 3, ops, results), ZNONODE);
    EQUAL(results[0].err, ZOK);
    EQUAL(results[1].err, ZNONODE);
    EQUAL(results[2].err, ZRUNTIMEINCONSISTENCY);
    EQUAL(zoo_exists(zh, under("/a"), 0, &stat), ZOK);
    EQUAL(stat.version, 1);
    zookeeper_close(zh);
}

static void watches(void) {
    zhandle_t *zh = connected(), *other = connected();
    struct told *told = listener();
    struct Stat stat;
    struct String_vector children;
    char data[16];
    int length = sizeof data;
    make(zh, root);
    EQUAL(zoo_wexists(zh, under("/a"), hear, told, &stat), ZNONODE);
    EQUAL(zoo_wget_children(zh, root, hear, told, &children), ZOK);
    EQUAL(children.count, 0);
    make(other, under("/a"));
    UNTIL(heard(told) == 2);
    EQUAL(times(told, ZOO_CREATED_EVENT, under("/a")), 1);
    EQUAL(times(told, ZOO_CHILD_EVENT, root), 1);
    EQUAL(zoo_wget(zh, under("/a"), hear, told, data, &length, &stat), ZOK);
    EQUAL(zoo_set(other, under("/a"), "1", 1, -1), ZOK);
    EQUAL(zoo_set(other, under("/a"), "2", 1, -1), ZOK);
    UNTIL(heard(told) == 3);
    EQUAL(times(told, ZOO_CHANGED_EVENT, under("/a")), 1);
    /* A change of its own: what others did before is here after it. */
    EQUAL(zoo_set(zh, root, "", 0, -1), ZOK);
    /* A watch that was taken back does not fire; one that is not there cannot be. */
    length = sizeof data;
    EQUAL(zoo_wget(zh, under("/a"), hear, told, data, &length, &stat), ZOK);
    EQUAL(zoo_remove_watches(zh, under("/a"), ZWATCHTYPE_DATA, hear, told, 0), ZOK);
    EQUAL(zoo_remove_watches(zh, under("/a"), ZWATCHTYPE_DATA, hear, told, 0), ZNOWATCHER);
    EQUAL(zoo_set(zh, under("/a"), "3", 1, -1), ZOK);
    length = sizeof data;
    EQUAL(zoo_wget(zh, under("/a"), hear, told, data, &length, &stat), ZOK);
    EQUAL(times(told, ZOO_CHANGED_EVENT, under("/a")), 1);
    EQUAL(zoo_delete(other, under("/a"), -1), ZOK);
    UNTIL(times(told, ZOO_DELETED_EVENT, under("/a")) == 1);
    zookeeper_close(zh);
    zookeeper_close(other);
}

#define PIPELINED 2000
#define READ_EACH 10
static volatile int versions_in_order, last_read;

static void set_done(int code, const struct Stat *stat, const void *data) {
    if (code == ZOK && stat->version == (int)(long)data && versions_in_order == stat->version - 1) versions_in_order = stat->version;
}

static void got(int code, const char *value, int length, const struct Stat *stat, const void *data) {
    (void)value, (void)length;
    /* A read between two writes of the same client shows the first and not the second. */
    if (code == ZOK && stat->version == (int)(long)data && last_read == stat->version - READ_EACH) last_read = stat->version;
}

static void pipeline(void) {
    zhandle_t *zh = connected();
    make(zh, root);
    versions_in_order = last_read = 0;
    for (long number = 1; number <= PIPELINED; number++) {
        EQUAL(zoo_aset(zh, root, "x", 1, -1, set_done, (void *)number), ZOK);
        if (number % READ_EACH == 0) EQUAL(zoo_aget(zh, root, 0, got, (void *)number), ZOK);
    }
    UNTIL(last_read == PIPELINED);
    EQUAL(versions_in_order, PIPELINED);
    zookeeper_close(zh);
}

static void config(void) {
    zhandle_t *zh = connected();
    char data[4096], expected[256];
    int length = sizeof data - 1;
    struct Stat stat;
    EQUAL(zoo_getconfig(zh, 0, data, &length, &stat), ZOK);
    data[length] = 0;
    for (int number = 1; number <= 3; number++) {
        char *line = strstr(data, (snprintf(expected, sizeof expected, "server.%d=", number), expected));
        EQUAL(line != NULL, 1);
        snprintf(expected, sizeof expected, ":participant;%s\n", host(number));
        EQUAL(strncmp(strstr(line, ":participant"), expected, strlen(expected)), 0);
    }
    zookeeper_close(zh);
}

/* A client in a process of its own, which is then stopped: its session with an ephemeral node, and an open connection that is silent. */
static pid_t frozen(clientid_t *known) {
    int ends[2];
    EQUAL(pipe(ends), 0);
    pid_t child = fork();
    if (child == 0) {
        zhandle_t *zh = open_at(host(1), 20000, NULL, NULL);
        while (zoo_state(zh) != ZOO_CONNECTED_STATE) usleep(10000);
        int code = zoo_create(zh, root, "", 0, &ZOO_OPEN_ACL_UNSAFE, ZOO_PERSISTENT, NULL, 0);
        if (code == ZOK) code = zoo_create(zh, under("/e"), "", 0, &ZOO_OPEN_ACL_UNSAFE, ZOO_EPHEMERAL, NULL, 0);
        clientid_t own = *zoo_client_id(zh);
        if (code != ZOK || write(ends[1], &own, sizeof own) != sizeof own) _exit(1);
        pause();
        _exit(0);
    }
    close(ends[1]);
    ssize_t length = read(ends[0], known, sizeof *known);
    close(ends[0]);
    EQUAL(length, sizeof *known);
    EQUAL(kill(child, SIGSTOP), 0);
    return child;
}

static void sessions(void) {
    clientid_t known, forged;
    struct Stat stat;
    pid_t first = frozen(&known);
    forged = known;
    forged.passwd[3] ^= 1;
    zhandle_t *thief = open_at(host(2), 20000, &forged, NULL);
    UNTIL(zoo_state(thief) == ZOO_EXPIRED_SESSION_STATE);
    zookeeper_close(thief);
    zhandle_t *heir = open_at(host(2), 20000, &known, NULL);
    UNTIL(zoo_state(heir) == ZOO_CONNECTED_STATE);
    EQUAL(zoo_client_id(heir)->client_id, known.client_id);
    EQUAL(zoo_recv_timeout(heir), 20000);
    EQUAL(zoo_exists(heir, under("/e"), 0, &stat), ZOK);
    EQUAL(stat.ephemeralOwner, known.client_id);
    EQUAL(zoo_set(heir, under("/e"), "mine", 4, 0), ZOK);
    kill(first, SIGKILL);
    waitpid(first, NULL, 0);
    EQUAL(zoo_set(heir, under("/e"), "mine", 4, 1), ZOK);
    zookeeper_close(heir);
    zhandle_t *late = open_at(hosts, 20000, &known, NULL);
    UNTIL(zoo_state(late) == ZOO_EXPIRED_SESSION_STATE);
    zookeeper_close(late);
    zhandle_t *other = connected();
    EQUAL(zoo_exists(other, under("/e"), 0, &stat), ZNONODE);
    zookeeper_close(other);
}

static void catches_up(void) {
    /* It knows one node only, so what happens while that is down happens while the client is nowhere. */
    struct told *told = listener();
    zhandle_t *zh = open_at(host(1), 40000, NULL, NULL), *other = open_at(host(2), 10000, NULL, NULL);
    struct String_vector children;
    struct Stat stat;
    char data[16];
    int length = sizeof data;
    UNTIL(zoo_state(zh) == ZOO_CONNECTED_STATE && zoo_state(other) == ZOO_CONNECTED_STATE);
    int64_t session = zoo_client_id(zh)->client_id;
    make(zh, root);
    const char *names[] = {"/data", "/gone", "/quiet", "/parent"};
    for (int at = 0; at < 4; at++) make(zh, under(names[at]));
    EQUAL(zoo_create(zh, under("/mine"), "", 0, &ZOO_OPEN_ACL_UNSAFE, ZOO_EPHEMERAL, NULL, 0), ZOK);
    EQUAL(zoo_wget(zh, under("/data"), hear, told, data, &length, &stat), ZOK);
    EQUAL(zoo_wexists(zh, under("/gone"), hear, told, &stat), ZOK);
    EQUAL(zoo_wexists(zh, under("/made"), hear, told, &stat), ZNONODE);
    EQUAL(zoo_wexists(zh, under("/quiet"), hear, told, &stat), ZOK);
    EQUAL(zoo_wget_children(zh, under("/parent"), hear, told, &children), ZOK);
    cluster("kill", 1);
    UNTIL(zoo_state(zh) != ZOO_CONNECTED_STATE);
    /* It may be that the leader died, and that the first answer is lost with it. */
    UNTIL(zoo_set(other, under("/data"), "new", 3, 0) != ZCONNECTIONLOSS);
    EQUAL(zoo_delete(other, under("/gone"), -1), ZOK);
    make(other, under("/made"));
    make(other, under("/parent/child"));
    EQUAL(heard(told), 0);
    cluster("restart", 1);
    UNTIL(zoo_state(zh) == ZOO_CONNECTED_STATE);
    UNTIL(heard(told) == 4);
    EQUAL(times(told, ZOO_CHANGED_EVENT, under("/data")), 1);
    EQUAL(times(told, ZOO_DELETED_EVENT, under("/gone")), 1);
    EQUAL(times(told, ZOO_CREATED_EVENT, under("/made")), 1);
    EQUAL(times(told, ZOO_CHILD_EVENT, under("/parent")), 1);
    /* What did not change is still watched. */
    EQUAL(zoo_set(other, under("/quiet"), "", 0, 0), ZOK);
    UNTIL(heard(told) == 5);
    EQUAL(times(told, ZOO_CHANGED_EVENT, under("/quiet")), 1);
    EQUAL(zoo_client_id(zh)->client_id, session);
    EQUAL(zoo_exists(zh, under("/mine"), 0, &stat), ZOK);
    EQUAL(stat.ephemeralOwner, session);
    zookeeper_close(zh);
    zookeeper_close(other);
}

static const struct {
    const char *name;
    void (*run)(void);
} checks[] = {
    {"nodes: create, create2, get, set2, exists, delete, and their codes", nodes},
    {"modes: sequential, ephemeral, container, with a time to live", modes},
    {"acl: creator, digest, and ZNOAUTH for who is not", access_control},
    {"multi: results of each operation; none takes place where one fails", multis},
    {"watches: fire once, and one taken back does not fire", watches},
    {"pipeline: 2000 writes and 200 reads without waiting are answered in order, each read between its writes", pipeline},
    {"config: zoo_getconfig names the addresses of clients", config},
    {"session: goes on at another node while its old connection is open, not with a wrong password, and not when closed", sessions},
    {"reconnection: what happened while the only known node was dead is told by setWatches, once each", catches_up},
};

/* With an argument only the checks whose name has it. */
int main(int argc, char **argv) {
    volatile int failed = 0;
    const int count = sizeof checks / sizeof checks[0];
    hosts = getenv("INTEROP_HOSTS");
    zoo_set_debug_level(0);
    zoo_deterministic_conn_order(1);
    for (volatile int at = 0; at < count; at++) {
        if (argc > 1 && !strstr(checks[at].name, argv[1])) continue;
        snprintf(root, sizeof root, "/c-%d-%d", getpid(), at);
        if (setjmp(out) == 0) {
            checks[at].run();
            printf("ok c %s\n", checks[at].name);
        } else {
            printf("not ok c %s: %s\n", checks[at].name, wrong);
            failed++;
        }
        fflush(stdout);
    }
    return failed != 0;
}
