//! What the tests against API servers share.

#![allow(dead_code, unreachable_pub, reason = "each test file uses a part of it")]

pub mod answers;
pub mod certificates;
pub mod follower;
pub mod real;
pub mod scripted;
pub mod server;
pub mod virtual_time;
