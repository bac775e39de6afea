//! What the programs in `bin/` share.
