//! A load with every byte checked.

use nvmf_target::host::{Controller, Options};
use nvmf_target::perf::{Load, run};

use crate::common::{SUBSYSTEM, Setup, nqn, with_target};

#[test]
fn reads_under_load_return_what_was_written() {
    for (size, in_capsule) in [(4096, true), (4096, false), (128 << 10, true)] {
        with_target(&Setup::default(), |view| {
            let mut host = view.host(1);
            let options = Options { queues: 2, ..Options::default() };
            let mut controller = Controller::connect(&mut host, view.at, &nqn(SUBSYSTEM), options).unwrap();
            let namespaces = controller.namespaces(&mut host).unwrap();
            let load = Load {
                queues: 2,
                depth: 16,
                size,
                read_percent: 60,
                count: Some(2000),
                verify: true,
                span: 2 << 20,
                in_capsule,
                ..Load::default()
            };
            let report = run(&mut host, &mut controller, &namespaces[0], &load).unwrap();
            assert!(report.commands >= 2000, "{report:?}");
            assert!((1000..2000).contains(&report.checked), "sixty of a hundred: {}", report.checked);
            controller.shutdown(&mut host).unwrap();
            view.until_nothing_is_left(&mut host);
        });
    }
}
