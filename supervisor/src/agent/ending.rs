// SPDX-License-Identifier: Apache-2.0
//! The end of a job: what it says, and with which code.

use steadfast_core::JobResult;

use super::launch::Inherited;
use crate::keeper::protocol::Welcome;
use crate::output::Outputs;
use crate::settings::Settings;

pub(super) fn exit_code(_settings: &Settings, result: &JobResult) -> u8 {
    u8::try_from(result.exit_code()).unwrap_or(1)
}

pub(super) fn pass_on_error_file(_settings: &Settings, _result: &JobResult, _inherited: Inherited<'_>) {}

pub(super) fn summary(_settings: &Settings, result: &JobResult, _outputs: &Outputs, _welcome: &Welcome) -> String {
    result.message.clone()
}
