//! One run from its beginning to its verdict, and many of them as a matrix.
