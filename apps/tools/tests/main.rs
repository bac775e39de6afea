//! The development tools, run as a user would, with little work.

mod many;
