"""One-shot watches, DataWatch, ChildrenWatch, TreeCache."""

from kazoo.recipe.cache import TreeCache, TreeEvent

from harness import Background, check, client, equal, fresh, until


def told(event):
    return (event.type, event.path)


@check("watch: fires once, for what it was set for, on every kind of change")
def one_time():
    zk, other, path = client(), client(), fresh()
    seen = []
    zk.ensure_path(path)
    equal(zk.exists(f"{path}/a", watch=lambda e: seen.append(("exists", *told(e)))), None)
    zk.get_children(path, watch=lambda e: seen.append(("children", *told(e))))
    other.create(f"{path}/a", b"1")
    until(lambda: len(seen) == 2, "created and child")
    equal(sorted(seen), [("children", "CHILD", path), ("exists", "CREATED", f"{path}/a")])
    seen.clear()
    zk.get(f"{path}/a", watch=lambda e: seen.append(told(e)))
    other.set(f"{path}/a", b"2")
    other.set(f"{path}/a", b"3")
    until(lambda: seen, "changed")
    zk.sync(path)
    equal((seen, zk.get(f"{path}/a")[0]), ([("CHANGED", f"{path}/a")], b"3"))
    seen.clear()
    zk.exists(f"{path}/a", watch=lambda e: seen.append(("exists", *told(e))))
    zk.get_children(f"{path}/a", watch=lambda e: seen.append(("children", *told(e))))
    other.delete(f"{path}/a")
    until(lambda: len(seen) == 2, "deleted, to both")
    equal(sorted(seen), [("children", "DELETED", f"{path}/a"), ("exists", "DELETED", f"{path}/a")])


@check("watch: the event comes before the reply that shows the change, among reads that never pause")
def event_first():
    zk, other, path = client(), client(), fresh()
    changes = 100
    zk.create(path, b"value-0;", makepath=True)
    # In the order received: kazoo delivers events and replies in two threads.
    order, connection = [], zk._connection
    read_event, read_response = connection._read_watch_event, connection._read_response

    def on_event(buffer, offset):
        order.append("event")
        return read_event(buffer, offset)

    def on_response(header, buffer, offset):
        order.append(bytes(buffer[offset:]))
        return read_response(header, buffer, offset)

    connection._read_watch_event, connection._read_response = on_event, on_response
    for number in range(1, changes + 1):
        order.clear()
        value = b"value-%d;" % number
        zk.get(path, watch=lambda _event: None)
        change = Background(other.set, path, value)
        last = zk.get_async(path)
        while last.get()[0] != value:
            replies = [zk.get_async(path) for _ in range(5)]
            last = replies[-1]
        change.join()
        first = next(place for place, what in enumerate(order) if what != "event" and value in what)
        equal([place for place, what in enumerate(order) if what == "event" and place < first] != [], True, f"change {number}")
        equal(order.count("event"), 1, f"events of change {number}")


@check("data watch: called at once, for each state it finds, and for creation and deletion")
def data_watch():
    zk, other, path = client(), client(), fresh()
    seen = []

    @zk.DataWatch(path)
    def _(data, stat, event):
        seen.append((data, stat.version if stat else None, event.type if event else None))

    equal(seen, [(None, None, None)])
    steps = (
        (lambda: other.create(path, b"a", makepath=True), (b"a", 0, "CREATED")),
        (lambda: other.set(path, b"b"), (b"b", 1, "CHANGED")),
        (lambda: other.delete(path), (None, None, "DELETED")),
        (lambda: other.create(path, b"c"), (b"c", 0, "CREATED")),
    )
    for step, (change, expected) in enumerate(steps, start=2):
        change()
        until(lambda: len(seen) == step, f"call {step}")
        equal(seen[-1], expected)


@check("children watch: called at once and for each change, and ends when its function says so")
def children_watch():
    zk, other, path = client(), client(), fresh()
    zk.ensure_path(path)
    seen = []

    @zk.ChildrenWatch(path)
    def _(children):
        seen.append(sorted(children))
        return len(children) < 3

    equal(seen, [[]])
    for name in ("a", "b"):
        other.create(f"{path}/{name}")
        until(lambda: seen[-1][-1:] == [name], f"told of {name}")
    other.delete(f"{path}/a")
    until(lambda: seen[-1] == ["b"], "told that a is gone")
    other.create(f"{path}/c")
    until(lambda: seen[-1] == ["b", "c"], "told of c")
    other.create(f"{path}/d")
    until(lambda: seen[-1] == ["b", "c", "d"], "told of d")
    other.create(f"{path}/e")
    zk.sync(path)
    equal(zk.exists(f"{path}/e") is not None, True)
    equal(seen, [[], ["a"], ["a", "b"], ["b"], ["b", "c"], ["b", "c", "d"]])


@check("tree cache: holds a whole subtree and follows it")
def tree_cache():
    zk, other, path = client(), client(), fresh()
    other.create(f"{path}/a/b", b"deep", makepath=True)
    cache, kinds = TreeCache(zk, path), []
    cache.listen(lambda event: kinds.append(event.event_type))
    cache.start()
    until(lambda: TreeEvent.INITIALIZED in kinds, "the cache is filled")
    equal(cache.get_data(f"{path}/a/b").data, b"deep")
    equal(cache.get_children(path), frozenset({"a"}))
    other.set(f"{path}/a/b", b"new")
    other.create(f"{path}/c")
    until(lambda: cache.get_data(f"{path}/a/b").data == b"new", "the change")
    until(lambda: cache.get_children(path) == frozenset({"a", "c"}), "the new node")
    other.delete(f"{path}/a/b")
    until(lambda: cache.get_children(f"{path}/a") == frozenset(), "the deletion")
    cache.close()
