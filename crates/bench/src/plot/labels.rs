//! Where the names of lines stand: beside the lines' ends, moved up or down until none lies on another.

use std::ops::Range;

/// The centers of labels of this height that would be at the wanted ones, in their order: none overlaps another, all
/// are within the range if it has room for them, and together they are moved as little as possible.
pub(super) fn apart(wanted: &[i32], height: i32, within: &Range<i32>) -> Vec<i32> {
    let mut order: Vec<usize> = (0..wanted.len()).collect();
    order.sort_by_key(|&at| wanted[at]);
    // Less the height of the labels above, centers need only not decrease. Labels that would are a block, which lies at
    // the mean of what they want (isotonic regression). A block is their sum and number.
    let mut blocks: Vec<(i32, i32)> = Vec::new();
    let mut above = 0;
    for &at in &order {
        let mut block = (wanted[at] - above, 1);
        while let Some((sum, number)) = blocks.pop_if(|(sum, number)| *sum * block.1 > block.0 * *number) {
            block = (block.0 + sum, block.1 + number);
        }
        blocks.push(block);
        above += height;
    }
    let first = within.start + height / 2;
    // That of the last label, less the height of those above it.
    let last = within.end - height / 2 - (above - height).max(0);
    let less = blocks.iter().flat_map(|(sum, number)| (0..*number).map(move |_| sum.div_euclid(*number)));
    let mut centers = vec![0; wanted.len()];
    let mut above = 0;
    for (at, center) in order.into_iter().zip(less) {
        centers[at] = center.min(last).max(first) + above;
        above += height;
    }
    centers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_with_room_stay_and_those_too_close_move_apart_evenly() {
        assert_eq!(apart(&[10, 80, 40], 14, &(0..100)), [10, 80, 40]);
        assert_eq!(apart(&[50, 50, 50], 14, &(0..100)), [36, 50, 64]);
        assert_eq!(apart(&[52, 48], 10, &(0..100)), [55, 45]);
        // A block that grows into the next label takes it along.
        assert_eq!(apart(&[50, 50, 60], 14, &(0..100)), [39, 53, 67]);
    }

    #[test]
    fn labels_at_the_edges_stay_inside() {
        assert_eq!(apart(&[0, 2], 14, &(0..100)), [7, 21]);
        assert_eq!(apart(&[99, 100], 14, &(0..100)), [79, 93]);
        assert_eq!(apart(&[], 14, &(0..100)), [0; 0]);
    }

    #[test]
    fn labels_never_overlap_and_stay_inside_in_their_order() {
        const CENTERS: [i32; 7] = [-50, 0, 5, 140, 150, 299, 350];
        let within = 0..300;
        for number in 0..CENTERS.len().pow(5) {
            let wanted = [0, 1, 2, 3, 4].map(|label| CENTERS[number / CENTERS.len().pow(label) % CENTERS.len()]);
            for height in [1, 14, 60] {
                let mut centers = apart(&wanted, height, &within);
                for (center, other) in (0..5).flat_map(|one| (0..5).map(move |other| (one, other))) {
                    let is_above = centers[center] < centers[other];
                    assert!(wanted[center] >= wanted[other] || is_above, "{wanted:?} at {centers:?}");
                }
                centers.sort_unstable();
                let is_inside = centers[0] - height / 2 >= within.start && centers[4] + height / 2 <= within.end;
                assert!(is_inside, "{wanted:?} at {centers:?}");
                assert!(centers.windows(2).all(|pair| pair[1] - pair[0] >= height), "{wanted:?} at {centers:?}");
            }
        }
    }
}
