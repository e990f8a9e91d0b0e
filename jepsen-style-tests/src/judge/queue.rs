//! A lock's queue, rebuilt from the creations and deletions of its requests' nodes: who stood where at which zxid.
//!
//! A queue's rule is one sentence (a request holds while fewer than N stand before it), so the rebuilt queue is an independent model of
//! the server's. Requests are told apart by the zxid that created them, not by their sequence, which begins anew with a new directory.

use std::collections::{BTreeMap, BTreeSet};

/// A node came or went.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Event {
    /// When, in the replicated order.
    pub zxid: u64,
    /// Whether it came.
    pub created: bool,
    /// Which.
    pub path: String,
}

/// A node's life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Life {
    /// Its name in its directory.
    pub name: String,
    /// The zxid that created it: the token, for a request.
    pub token: u64,
    /// The zxid that removed it, if one did.
    pub gone: Option<u64>,
}

impl Life {
    /// Whether it stood right after that zxid.
    pub fn stands_after(&self, zxid: u64) -> bool {
        self.token <= zxid && self.gone.is_none_or(|gone| gone > zxid)
    }

    /// Whether it is a request (or the place of a dead holder), and not some other child.
    pub fn is_request(&self) -> bool {
        let digits = self.name.len().checked_sub(10).and_then(|at| self.name.get(at..));
        digits.is_some_and(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()))
    }
}

/// The lives of a directory's children, in the order in which they were created.
///
/// # Errors
/// A node comes twice without having gone, or goes without having come: then the history has a hole.
pub fn lives(events: &BTreeSet<Event>, directory: &str) -> Result<Vec<Life>, String> {
    let mut standing: BTreeMap<&str, usize> = BTreeMap::new();
    let mut lives: Vec<Life> = Vec::new();
    // Of one transaction, what goes comes before what takes its place under the same name.
    for event in events {
        let Some(name) = event.path.strip_prefix(directory).and_then(|rest| rest.strip_prefix('/')) else { continue };
        if name.contains('/') {
            continue;
        }
        if event.created {
            if standing.insert(name, lives.len()).is_some() {
                return Err(format!("{} was created at {} and had not gone", event.path, event.zxid));
            }
            lives.push(Life { name: name.to_owned(), token: event.zxid, gone: None });
        } else {
            match standing.remove(name) {
                Some(at) => lives[at].gone = Some(event.zxid),
                None => return Err(format!("{} went at {} and had not come", event.path, event.zxid)),
            }
        }
    }
    Ok(lives)
}

/// A waiting request came to hold because others went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Promotion {
    /// The transaction in which they went.
    pub zxid: u64,
    /// The request.
    pub token: u64,
}

/// What a queue did over its life.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Course {
    /// Waiting requests that came to hold. Each is owed one notification, and nobody else is owed any.
    pub promotions: Vec<Promotion>,
    /// Requests that held from when they were created.
    pub at_once: usize,
    /// Waiting requests that went without ever having held, and from where: each wakes its successor at most.
    pub went_waiting: usize,
    /// The most that held at a time.
    pub most: usize,
    /// Those that stand at the end.
    pub left: usize,
}

/// Runs a queue in which the first `permits` requests hold.
pub fn course(requests: &[Life], permits: usize) -> Course {
    let mut by_zxid: BTreeMap<u64, (Vec<u64>, Vec<u64>)> = BTreeMap::new();
    for request in requests {
        by_zxid.entry(request.token).or_default().0.push(request.token);
        if let Some(gone) = request.gone {
            by_zxid.entry(gone).or_default().1.push(request.token);
        }
    }
    let mut course = Course::default();
    let mut queue: BTreeSet<u64> = BTreeSet::new();
    let mut holding: BTreeSet<u64> = BTreeSet::new();
    for (zxid, (came, went)) in by_zxid {
        for token in &went {
            queue.remove(token);
            if !holding.remove(token) {
                course.went_waiting += 1;
            }
        }
        queue.extend(&came);
        for token in queue.iter().take(permits) {
            if holding.insert(*token) {
                if *token == zxid {
                    course.at_once += 1;
                } else {
                    course.promotions.push(Promotion { zxid, token: *token });
                }
            }
        }
        course.most = course.most.max(holding.len());
    }
    course.left = queue.len();
    course
}

/// How many of `requests` stand before `token` right after that zxid.
pub fn before(requests: &[Life], token: u64, zxid: u64) -> usize {
    // In order of tokens: nothing after `token` matters.
    requests.iter().take_while(|request| request.token < token).filter(|request| request.stands_after(zxid)).count()
}

/// Judges what clients did while they were inside: each left nodes named `t<token>-…` in a directory, made after it was told that it
/// holds and removed before it gave up. At no zxid are there more than `permits`, and each was foremost in its queue all the while.
///
/// # Errors
/// Says who was inside when.
pub fn inside(requests: &[Life], insides: &[Life], permits: usize) -> Result<usize, String> {
    let mut ends: Vec<(u64, bool)> = Vec::new();
    let by_token: BTreeMap<u64, &Life> = requests.iter().map(|request| (request.token, request)).collect();
    for life in insides {
        let token = token_of(&life.name).ok_or_else(|| format!("{} names no token", life.name))?;
        let Some(request) = by_token.get(&token) else {
            return Err(format!("{} is inside under token {token}, which is none of the queue's", life.name));
        };
        if request.token > life.token || !request.stands_after(life.token) {
            return Err(format!("token {token} was inside at {} without a place in the queue", life.token));
        }
        let ahead = before(requests, token, life.token);
        if ahead >= permits {
            return Err(format!("token {token} was inside at {} with {ahead} requests before it", life.token));
        }
        if let (Some(gone), left) = (request.gone, life.gone)
            && left.is_none_or(|left| left > gone)
        {
            return Err(format!("token {token} was still inside when its place went at {gone}"));
        }
        ends.push((life.token, true));
        ends.extend(life.gone.map(|gone| (gone, false)));
    }
    // Those that leave in a transaction have left when others enter in the same.
    ends.sort_unstable();
    let (mut now, mut most) = (0usize, 0);
    for (zxid, enters) in ends {
        now = if enters { now + 1 } else { now.saturating_sub(1) };
        if now > permits {
            return Err(format!("{now} were inside at {zxid}, with {permits} permits"));
        }
        most = most.max(now);
    }
    Ok(most)
}

/// The token in `t<token>-…`.
pub fn token_of(name: &str) -> Option<u64> {
    name.strip_prefix('t')?.split('-').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn life(token: u64, gone: u64) -> Life {
        Life { name: format!("_c_x-lock-{token:010}"), token, gone: (gone > 0).then_some(gone) }
    }

    fn visit(token: u64, from: u64, to: u64) -> Life {
        Life { name: format!("t{token}-c1"), token: from, gone: (to > 0).then_some(to) }
    }

    fn events(list: &[(u64, bool, &str)]) -> BTreeSet<Event> {
        list.iter()
            .map(|(zxid, created, path)| Event { zxid: *zxid, created: *created, path: (*path).into() })
            .collect()
    }

    #[test]
    fn lives_are_rebuilt_and_holes_are_found() {
        let good = events(&[
            (3, true, "/l/a"),
            (4, true, "/l"),
            (5, true, "/l/a/deep"),
            (6, false, "/l/a"),
            (6, true, "/l/b"),
        ]);
        let lived = lives(&good, "/l").unwrap();
        assert_eq!(lived.len(), 2);
        assert_eq!((lived[0].token, lived[0].gone, lived[1].gone), (3, Some(6), None));
        assert!(lives(&events(&[(3, false, "/l/a")]), "/l").unwrap_err().contains("had not come"));
        assert!(lives(&events(&[(3, true, "/l/a"), (4, true, "/l/a")]), "/l").unwrap_err().contains("had not gone"));
        // A node replaced in one transaction under its own name.
        assert_eq!(lives(&events(&[(3, true, "/l/a"), (4, true, "/l/a"), (4, false, "/l/a")]), "/l").unwrap().len(), 2);
    }

    #[test]
    fn an_exclusive_queue() {
        // 10 holds at once; 11 and 12 wait; 11 dies waiting; 12 is promoted when 10 goes; 30 finds it free.
        let requests = [life(10, 20), life(11, 15), life(12, 25), life(30, 0)];
        let course = course(&requests, 1);
        assert_eq!(course.promotions, [Promotion { zxid: 20, token: 12 }]);
        assert_eq!((course.at_once, course.went_waiting, course.most, course.left), (2, 1, 1, 1));
        assert_eq!(before(&requests, 12, 14), 2);
        assert_eq!(before(&requests, 12, 15), 1);
        assert_eq!(before(&requests, 12, 20), 0);
    }

    #[test]
    fn permits_freed_together_promote_as_many() {
        let requests = [life(1, 10), life(2, 10), life(3, 0), life(4, 0), life(5, 0)];
        let course = course(&requests, 2);
        assert_eq!(course.promotions.iter().map(|p| p.token).collect::<Vec<_>>(), [3, 4]);
        assert_eq!((course.at_once, course.most, course.left), (2, 2, 3));
    }

    #[test]
    fn whoever_is_inside_holds() {
        let requests = [life(1, 10), life(2, 12), life(3, 14)];
        assert_eq!(inside(&requests, &[visit(1, 4, 9), visit(2, 5, 11), visit(3, 10, 13)], 2), Ok(2));
        let judged = |visits: &[Life], permits| inside(&requests, visits, permits).unwrap_err();
        assert!(judged(&[visit(1, 4, 9), visit(3, 8, 13)], 2).contains("2 requests before it"));
        assert!(judged(&[visit(7, 4, 9)], 2).contains("none of the queue's"));
        assert!(judged(&[visit(1, 11, 12)], 2).contains("without a place"));
        assert!(judged(&[visit(1, 4, 11)], 2).contains("still inside"));
        // Stands on its own: too many at a time, although each alone stands well in its queue.
        let twice = [visit(1, 4, 9), visit(1, 5, 9), visit(2, 6, 9)];
        assert!(judged(&twice, 2).contains("3 were inside"));
        assert_eq!(
            inside(&requests, &[visit(1, 4, 10), visit(2, 10, 12)], 1),
            Ok(1),
            "left and entered in one transaction"
        );
    }

    #[test]
    fn other_children_are_no_requests() {
        assert!(life(1, 0).is_request());
        assert!(!visit(1, 2, 3).is_request());
    }
}
