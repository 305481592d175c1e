// SPDX-License-Identifier: Apache-2.0
//! The Python hook in real `PyTorch`.

use steadfast_health::progress_page::StepSource;
use steadfast_tests::{PythonJob, Requirement};

/// A model, data, and a way to see what the page shows.
const SETUP: &str = r"
import os, time
import torch
from _steadfast.recorder import recorder

model = torch.nn.Linear(4, 4)
page = recorder.page()

def backward():
    model(torch.randn(2, 4)).sum().backward()
";

#[track_caller]
fn runs(lines: &str) {
    let mut job = PythonJob::new(&format!("{SETUP}{lines}")).start();
    job.wait().ended_with(0);
}

#[test]
fn torch_steps_of_silent_ranks_are_counted_through_a_restart() {
    if !Requirement::Torch.met() {
        return;
    }
    let train = r#"
import os, time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank, attempt = dist.get_rank(), os.environ["TORCHELASTIC_RESTART_COUNT"]
model = DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.Adam(model.parameters())
done = 0
if attempt == "1":
    saved = torch.load("saved.pt")
    optimizer.load_state_dict(saved)
    done = 20
while done < 40:
    for micro in range(4):
        model(torch.randn(2, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    done += 1
    if done == 20 and attempt == "0":
        if rank == 0:
            torch.save(optimizer.state_dict(), "saved.pt")
        dist.barrier()
        if rank == 1:
            raise ValueError("a bad batch")
if rank == 0:
    while not os.path.exists("end"):
        time.sleep(0.01)
"#;
    let options = ["--nproc-per-node", "2", "--max-restarts", "1"];
    let mut job = PythonJob::with_options(&options, train).start();
    job.eventually("step 40 of the second attempt", |job| {
        let status = job.status()?;
        (status["generation"] == 2 && status["step"] == 40).then_some(())
    });
    let page = &job.pages(2, 0)[0];
    assert_eq!(page.step.unwrap().source, StepSource::Optimizer);
    job.touch("end");
    let outcome = job.wait();
    outcome
        .ended_with(0)
        .said("ValueError: a bad batch")
        .said("at step 20")
        .said("last step 40");
    let error = job.error_file(0, 1);
    assert_eq!(error["message"]["message"], "ValueError: a bad batch");
}

#[test]
fn torch_several_optimizers_make_one_step_together() {
    if !Requirement::Torch.met() {
        return;
    }
    runs(
        r"
pair = [torch.optim.SGD(model.parameters(), lr=0.1), torch.optim.SGD(model.parameters(), lr=0.1)]
for step in range(1, 6):
    backward()
    for optimizer in pair:
        optimizer.step()
    assert page.step == step, (page.step, step)
# One that steps more seldom, and one that takes the place of the others.
critic = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(6, 12):
    pair[0].step()
    if step % 3 == 0:
        critic.step()
    assert page.step == step, (page.step, step)
assert page.source == 1
later = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(4):
    later.step()
assert page.step == 14, page.step
",
    );
}

#[test]
fn torch_the_program_has_the_last_word() {
    if !Requirement::Torch.met() {
        return;
    }
    runs(
        r"
import steadfast
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(1001, 1004):
    backward()
    optimizer.step()
    steadfast.progress(step)
    changed = page.changed_ns
    optimizer.step()
    assert page.step == step and page.changed_ns > changed
assert page.source == 3
",
    );
}

#[test]
fn torch_saving_and_loading_are_phases() {
    if !Requirement::Torch.met() {
        return;
    }
    runs(
        r#"
class Watcher:
    seen = []
    def __reduce__(self):
        Watcher.seen.append(page.phase)
        return (looked, ())

def looked():
    Watcher.seen.append(page.phase)

torch.save(Watcher(), "before.pt")
torch.load("before.pt")
assert Watcher.seen == [2, 4], Watcher.seen
assert page.phase == 0
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
optimizer.step()
torch.save(Watcher(), "after.pt")
torch.load("after.pt")
# Once it trains, what it loads is data.
assert Watcher.seen == [2, 4, 2, 1], Watcher.seen
try:
    torch.load("missing.pt")
except FileNotFoundError:
    pass
assert page.phase == 1 and not recorder._open
"#,
    );
}

#[test]
fn torch_data_loaders_leave_no_pages() {
    if !Requirement::Torch.met() {
        return;
    }
    let lines = r#"
from torch.utils.data import DataLoader, Dataset

class Saved(Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, index):
        return torch.load("sample.pt")

if __name__ == "__main__":
    torch.save(torch.ones(4), "sample.pt")
    for method in ("fork", "spawn"):
        for batch in DataLoader(Saved(), num_workers=2, multiprocessing_context=method):
            pass
    open("loaded", "w").close()
    while not os.path.exists("end"):
        time.sleep(0.01)
"#;
    let mut job =
        PythonJob::new(&format!("{SETUP}{lines}").replace("page = recorder.page()", "")).start();
    job.eventually("the data", |job| {
        job.work().join("loaded").exists().then_some(())
    });
    assert_eq!(job.pages(1, 0).len(), 1);
    job.touch("end");
    job.wait().ended_with(0);
}
