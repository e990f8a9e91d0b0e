//! The report of a run or a matrix: one self-contained page, and the raw history beside it.
