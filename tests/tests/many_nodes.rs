// SPDX-License-Identifier: Apache-2.0
//! Jobs on several nodes, whose network is well: nodes that are lost, leave and come.

use steadfast_tests::Nodes;

const THREE: [&str; 4] = ["--nnodes", "3", "--lease", "4s"];

#[test]
fn three_nodes_train_as_one() {
    let Some(mut nodes) = Nodes::new(3, 3) else {
        return;
    };
    nodes.start_all(&THREE);
    nodes.all_end_with(0, &[1, 2, 3]);
    nodes.trained_rightly(3);
    println!("{}", nodes.describe());
    println!("{:?}", nodes.etcd.keys("/steadfast/"));
}
