// SPDX-License-Identifier: Apache-2.0
//! The commands `status`, `stop`, `restart`, `drain` and `checkpoint`.

use std::io::Write;
use std::process::ExitCode;

use steadfast_proto::v1::StatusReply;

use super::{ControlError, one_job, running_jobs, status_text};
use crate::cli::{Action, Control};
use crate::console_line::say;

/// Exit code when there is no such job, or it does not answer.
const NO_ANSWER: u8 = 1;

/// Carries out one command.
pub(crate) fn run(request: &Control) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let answered = match runtime {
        Ok(runtime) => runtime.block_on(answer(request)),
        Err(error) => Err(error.to_string()),
    };
    match answered {
        Ok(text) => {
            // A reader that went away (`| head`) is no failure.
            drop(std::io::stdout().write_all(text.as_bytes()));
            ExitCode::SUCCESS
        }
        Err(message) => {
            say(&format!("error: {message}"));
            ExitCode::from(NO_ANSWER)
        }
    }
}

async fn answer(request: &Control) -> Result<String, String> {
    let in_words = |error: ControlError| match std::error::Error::source(&error) {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    };
    if request.action == Action::Status {
        return status(request).await.map_err(in_words);
    }
    let job = one_job(&request.runtime_root, request.job.as_deref()).map_err(in_words)?;
    let mut step = None;
    let message = match request.action {
        Action::Stop => job.stop(None, "").await,
        Action::Drain => job.drain().await,
        Action::Checkpoint { wait } => job.checkpoint(wait).await.map(|reply| {
            step = reply.step;
            reply.message
        }),
        Action::Restart | Action::Status => job.restart("").await,
    }
    .map_err(in_words)?;
    if matches!(request.action, Action::Checkpoint { wait: Some(_) }) && step.is_none() {
        return Err(message);
    }
    Ok(if request.json {
        let mut fields = serde_json::json!({ "job": job.job, "message": message });
        if let Some(step) = step {
            fields["step"] = step.into();
        }
        format!("{fields}\n")
    } else {
        format!("{message}\n")
    })
}

async fn status(request: &Control) -> Result<String, ControlError> {
    let jobs = match &request.job {
        Some(name) => vec![one_job(&request.runtime_root, Some(name))?],
        None => running_jobs(&request.runtime_root)?,
    };
    let mut replies: Vec<StatusReply> = Vec::new();
    for job in &jobs {
        replies.push(job.status().await?);
    }
    if request.json {
        // A list whether one job runs or none: scripts need no special case.
        return Ok(format!(
            "{}\n",
            serde_json::json!({ "version": 1, "jobs": replies })
        ));
    }
    if replies.is_empty() {
        return Ok("no job of this user runs on this node\n".to_owned());
    }
    Ok(replies
        .iter()
        .map(status_text)
        .collect::<Vec<_>>()
        .join("\n"))
}
