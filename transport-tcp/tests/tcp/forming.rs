//! Groups that form.

use crate::support::*;

#[test]
fn two_ranks_form_and_a_byte_goes_each_way_on_every_connection() {
    check_ring(&Group::new("127.0.0.1", 2, 1).form());
}
