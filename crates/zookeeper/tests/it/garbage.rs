//! Random bytes and damaged messages.

use crate::golden::properties::{self, examine};
use crate::strategies;
use bytes::BytesMut;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

/// A damage: one byte replaced, or the message truncated.
#[derive(Debug, Clone)]
enum Damage {
    Replace(Index, u8),
    Truncate(Index),
}

fn damages() -> impl Strategy<Value = Vec<Damage>> {
    let interesting = prop_oneof![Just(0), Just(1), Just(0x7f), Just(0x80), Just(0xff), any::<u8>()];
    let one = prop_oneof![
        6 => (any::<Index>(), interesting).prop_map(|(place, byte)| Damage::Replace(place, byte)),
        1 => any::<Index>().prop_map(Damage::Truncate),
    ];
    vec(one, 1..6)
}

/// A damaged message as an input of the property check. `skip` leaves the frame's length out.
fn damaged(kind: u8, framed: &[u8], skip: usize, damages: &[Damage]) -> Vec<u8> {
    let mut content = framed[skip..].to_vec();
    for damage in damages {
        if content.is_empty() {
            break;
        }
        match damage {
            Damage::Replace(place, byte) => {
                let place = place.index(content.len());
                content[place] = *byte;
            }
            Damage::Truncate(place) => content.truncate(place.index(content.len())),
        }
    }
    [&[kind][..], &content].concat()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn any_bytes(kind in 0..properties::KINDS, bytes in vec(any::<u8>(), 0..300)) {
        examine(&[&[kind][..], &bytes].concat());
    }

    /// Mostly zeroes and small numbers, as in lengths.
    #[test]
    fn bytes_that_look_like_lengths(
        kind in 0..properties::KINDS,
        bytes in vec(prop_oneof![3 => Just(0), 2 => 0..16u8, 1 => any::<u8>()], 0..300),
    ) {
        examine(&[&[kind][..], &bytes].concat());
    }

    #[test]
    fn damaged_requests(request in strategies::request(), damages in damages()) {
        let mut framed = BytesMut::new();
        request.encode(1, &mut framed);
        examine(&damaged(properties::REQUEST, &framed, 4, &damages));
        examine(&damaged(properties::SERVER_STREAM, &framed, 0, &damages));
    }

    #[test]
    fn damaged_replies((operation, reply) in strategies::reply(), damages in damages()) {
        let place = lockkeeper_zookeeper::OpCode::ALL.iter().position(|&code| code == operation).unwrap();
        let mut framed = BytesMut::new();
        reply.encode(1, 2, &mut framed);
        let mut input = damaged(properties::REPLY, &framed, 4, &damages);
        input.insert(1, u8::try_from(place).unwrap());
        examine(&input);
        examine(&damaged(properties::CLIENT_STREAM, &framed, 0, &damages));
    }

    #[test]
    fn damaged_events(event in strategies::event(), damages in damages()) {
        let mut framed = BytesMut::new();
        event.encode(1, &mut framed);
        examine(&damaged(properties::EVENT, &framed, 4, &damages));
    }

    #[test]
    fn damaged_connecting(
        request in strategies::connect_request(), response in strategies::connect_response(), damages in damages(),
    ) {
        let (mut asked, mut answered) = (BytesMut::new(), BytesMut::new());
        request.encode(&mut asked);
        response.encode(&mut answered);
        examine(&damaged(properties::CONNECT_REQUEST, &asked, 4, &damages));
        examine(&damaged(properties::CONNECT_RESPONSE, &answered, 4, &damages));
    }
}
