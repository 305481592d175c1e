// SPDX-License-Identifier: Apache-2.0
//! `steadfast status`, `stop` and `restart`: the other side of a job's control socket.

pub(crate) mod command;
mod text;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use steadfast_proto::v1::control_client::ControlClient;
use steadfast_proto::v1::{
    CheckpointReply, CheckpointRequest, DrainRequest, RestartRequest, StatusReply, StatusRequest,
    StopRequest,
};
use tonic::transport::{Channel, Endpoint};

use crate::keeper::runtime_dir::{SOCKET_NAME, is_alive};

pub(crate) use self::text::status_text;

/// How long a job may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// A job on this node, as its runtime directory shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RunningJob {
    /// Its name.
    pub(crate) job: String,
    /// The node name that it was started with.
    pub(crate) node: String,
    socket: PathBuf,
}

/// Why a job could not be asked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ControlError {
    /// The runtime directory cannot be read.
    #[error("could not look for jobs in {path}")]
    List {
        /// Where.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// No such job.
    #[error("no job called `{0}` runs on this node")]
    NoSuchJob(String),
    /// No job at all.
    #[error("no job of this user runs on this node")]
    NoJob,
    /// More than one job, and none was named.
    #[error("several jobs run on this node ({0}): choose one with --job")]
    Several(String),
    /// The job's agent does not answer.
    #[error("the job `{job}` does not answer ({reason}); its workers go on. Try again in a moment")]
    NoAnswer {
        /// Name of the job.
        job: String,
        /// What happened.
        reason: String,
    },
}

/// The jobs of this user on this node, by name.
pub(crate) fn running_jobs(runtime_root: &Path) -> Result<Vec<RunningJob>, ControlError> {
    let entries = match fs::read_dir(runtime_root) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => {
            return Err(ControlError::List {
                path: runtime_root.to_owned(),
                source,
            });
        }
    };
    let mut jobs: Vec<RunningJob> = entries
        .flatten()
        .filter(|entry| is_alive(&entry.path()))
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let (job, node) = name.split_once('@')?;
            let socket = entry.path().join(SOCKET_NAME);
            Some(RunningJob {
                job: job.to_owned(),
                node: node.to_owned(),
                socket,
            })
        })
        .collect();
    jobs.sort_by(|one, other| one.job.cmp(&other.job));
    Ok(jobs)
}

/// The job called `name`, or the only one that runs.
pub(crate) fn one_job(runtime_root: &Path, name: Option<&str>) -> Result<RunningJob, ControlError> {
    let mut jobs = running_jobs(runtime_root)?;
    if let Some(name) = name {
        return jobs
            .into_iter()
            .find(|job| job.job == name)
            .ok_or_else(|| ControlError::NoSuchJob(name.to_owned()));
    }
    match jobs.len() {
        0 => Err(ControlError::NoJob),
        1 => Ok(jobs.swap_remove(0)),
        _ => {
            let names: Vec<&str> = jobs.iter().map(|job| job.job.as_str()).collect();
            Err(ControlError::Several(names.join(", ")))
        }
    }
}

impl RunningJob {
    /// How the job is.
    pub(crate) async fn status(&self) -> Result<StatusReply, ControlError> {
        let mut client = self.connect().await?;
        let reply = client.status(StatusRequest {}).await;
        reply
            .map(tonic::Response::into_inner)
            .map_err(|status| self.no_answer(status.message()))
    }

    /// Asks for the end of the job. Returns what it says to that.
    pub(crate) async fn stop(
        &self,
        grace: Option<Duration>,
        reason: &str,
    ) -> Result<String, ControlError> {
        let request = StopRequest {
            grace_seconds: grace.map(|grace| grace.as_secs_f64()),
            reason: reason.to_owned(),
        };
        let reply = self.connect().await?.stop(request).await;
        reply
            .map(|reply| reply.into_inner().message)
            .map_err(|status| self.no_answer(status.message()))
    }

    /// Asks for a new generation. Returns what it says to that.
    pub(crate) async fn restart(&self, reason: &str) -> Result<String, ControlError> {
        let request = RestartRequest {
            reason: reason.to_owned(),
        };
        let reply = self.connect().await?.restart(request).await;
        reply
            .map(|reply| reply.into_inner().message)
            .map_err(|status| self.no_answer(status.message()))
    }

    /// Asks for a checkpoint; waits until it is there, for so long at most, if a time is given.
    pub(crate) async fn checkpoint(
        &self,
        wait: Option<Duration>,
    ) -> Result<CheckpointReply, ControlError> {
        let request = CheckpointRequest {
            wait: wait.is_some(),
            reason: String::new(),
        };
        let mut client = self.connect_for(wait.unwrap_or(PATIENCE)).await?;
        let reply = client.checkpoint(request).await;
        reply
            .map(tonic::Response::into_inner)
            .map_err(|status| self.no_answer(status.message()))
    }

    /// Asks for the end of this node's part in the job. Returns what it says to that.
    pub(crate) async fn drain(&self) -> Result<String, ControlError> {
        let reply = self.connect().await?.drain(DrainRequest::default()).await;
        reply
            .map(|reply| reply.into_inner().message)
            .map_err(|status| self.no_answer(status.message()))
    }

    async fn connect(&self) -> Result<ControlClient<Channel>, ControlError> {
        self.connect_for(PATIENCE).await
    }

    async fn connect_for(
        &self,
        patience: Duration,
    ) -> Result<ControlClient<Channel>, ControlError> {
        let address = format!("unix://{}", self.socket.display());
        let endpoint = Endpoint::try_from(address)
            .map_err(|error| self.no_answer(&error.to_string()))?
            .timeout(patience)
            .connect_timeout(PATIENCE);
        let channel = endpoint
            .connect()
            .await
            .map_err(|_| self.no_answer("its agent is being replaced"))?;
        Ok(ControlClient::new(channel))
    }

    fn no_answer(&self, reason: &str) -> ControlError {
        ControlError::NoAnswer {
            job: self.job.clone(),
            reason: reason.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keeper::runtime_dir::RuntimeDir;

    #[test]
    fn jobs_are_found_by_name_and_dead_ones_do_not_count() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path().join("jobs");
        assert!(running_jobs(&root).unwrap().is_empty());
        let alpha = RuntimeDir::create(&root, "alpha", "n1").unwrap();
        let beta = RuntimeDir::create(&root, "beta", "n1").unwrap();
        drop(RuntimeDir::create(&root, "dead", "n1").unwrap());
        assert_eq!(running_jobs(&root).unwrap().len(), 2);
        assert_eq!(one_job(&root, Some("beta")).unwrap().node, "n1");
        assert!(matches!(
            one_job(&root, Some("dead")),
            Err(ControlError::NoSuchJob(_))
        ));
        let several = one_job(&root, None).unwrap_err();
        assert_eq!(
            several.to_string(),
            "several jobs run on this node (alpha, beta): choose one with --job"
        );
        drop(beta);
        assert_eq!(one_job(&root, None).unwrap().job, "alpha");
        drop(alpha);
        assert!(matches!(one_job(&root, None), Err(ControlError::NoJob)));
    }
}
