// SPDX-License-Identifier: Apache-2.0
//! What it comes to, for a person and for a program.

use std::fmt;

use serde_json::{Map, Value, json};

/// What is at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// The training program, or the data that it was given.
    ProgramError,
    /// The memory of a host ran out.
    HostMemory,
    /// The memory of a GPU ran out.
    GpuMemory,
    /// A GPU, its memory or its driver.
    GpuHardware,
    /// A link: between GPUs, or a network port with its cable.
    Link,
    /// The network, or a service on it.
    Network,
    /// A file system, a disk, or what is on it.
    Storage,
    /// A rank that does not get on.
    Hang,
    /// A rank that gets on too slowly.
    Straggler,
    /// A node that is gone.
    NodeLost,
    /// Somebody took the node back.
    Preempted,
    /// The training diverged.
    Numeric,
    /// How the job, the scheduler or a node is set up.
    Configuration,
    /// Nobody can say.
    Unknown,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Action {
    /// Tell a person.
    ReportOnly,
    /// Start the workers again on the same nodes.
    RestartInPlace,
    /// Save, and go on later or elsewhere.
    CheckpointThenRestart,
    /// Go on without the node.
    ExcludeNode,
    /// End the job: it would fail again.
    FailJob,
}

/// Who is at fault, as far as the evidence reaches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Culprit {
    /// The rank.
    pub rank: Option<u32>,
    /// The node.
    pub node: Option<String>,
    /// Several nodes of which the same is true.
    pub nodes: Vec<String>,
    /// The address of the GPU, as `dddd:bb:dd`.
    pub gpu: Option<String>,
    /// Several GPUs of which the same is true.
    pub gpus: Vec<String>,
}

/// A line that the answer rests on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signal {
    /// The file, by its name in the evidence.
    pub file: String,
    /// The line, from 1; 0 where it is about the file as a whole.
    pub line: u32,
    /// What it says, in words.
    pub meaning: String,
    /// The line itself, shortened.
    pub text: String,
}

/// The answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// Whether anything is wrong.
    pub fault: bool,
    /// What is at fault.
    pub class: Class,
    /// Who is.
    pub culprit: Culprit,
    /// What is to be done.
    pub action: Action,
    /// How sure it is, from 0 to 1.
    pub confidence: f64,
    /// What it rests on.
    pub signals: Vec<Signal>,
    /// What was seen and is only a consequence.
    pub secondary: Vec<Signal>,
    /// How many incidents there are.
    pub incidents: u32,
    /// What a person does next, in one line.
    pub next_step: String,
    /// What was concluded, in one line.
    pub summary: String,
    /// The events of kernel logs, in the order of their lines.
    pub events: Vec<Value>,
    /// What could not be read.
    pub notes: Vec<String>,
}

impl Class {
    /// Every class.
    pub const ALL: [Self; 14] = [
        Self::ProgramError,
        Self::HostMemory,
        Self::GpuMemory,
        Self::GpuHardware,
        Self::Link,
        Self::Network,
        Self::Storage,
        Self::Hang,
        Self::Straggler,
        Self::NodeLost,
        Self::Preempted,
        Self::Numeric,
        Self::Configuration,
        Self::Unknown,
    ];

    /// The name in JSON and in files of rules.
    pub const fn name(self) -> &'static str {
        match self {
            Self::ProgramError => "program_error",
            Self::HostMemory => "host_memory",
            Self::GpuMemory => "gpu_memory",
            Self::GpuHardware => "gpu_hardware",
            Self::Link => "link",
            Self::Network => "network",
            Self::Storage => "storage",
            Self::Hang => "hang",
            Self::Straggler => "straggler",
            Self::NodeLost => "node_lost",
            Self::Preempted => "preempted",
            Self::Numeric => "numeric",
            Self::Configuration => "configuration",
            Self::Unknown => "unknown",
        }
    }

    /// What is done about it as a rule.
    pub const fn usual_action(self) -> Action {
        match self {
            Self::GpuHardware | Self::Link | Self::NodeLost => Action::ExcludeNode,
            Self::Straggler | Self::Numeric => Action::ReportOnly,
            Self::Preempted => Action::CheckpointThenRestart,
            Self::Configuration => Action::FailJob,
            Self::ProgramError
            | Self::HostMemory
            | Self::GpuMemory
            | Self::Network
            | Self::Storage
            | Self::Hang
            | Self::Unknown => Action::RestartInPlace,
        }
    }
}

impl Action {
    /// Every action.
    pub const ALL: [Self; 5] = [
        Self::ReportOnly,
        Self::RestartInPlace,
        Self::CheckpointThenRestart,
        Self::ExcludeNode,
        Self::FailJob,
    ];

    /// The name in JSON and in files of rules.
    pub const fn name(self) -> &'static str {
        match self {
            Self::ReportOnly => "report_only",
            Self::RestartInPlace => "restart_in_place",
            Self::CheckpointThenRestart => "checkpoint_then_restart",
            Self::ExcludeNode => "exclude_node",
            Self::FailJob => "fail_job",
        }
    }

    const fn in_words(self) -> &'static str {
        match self {
            Self::ReportOnly => "nothing by itself; a person should know",
            Self::RestartInPlace => "restart the workers where they are",
            Self::CheckpointThenRestart => "go on from the last checkpoint when there are nodes",
            Self::ExcludeNode => "go on without the node",
            Self::FailJob => "end the job: a restart would fail again",
        }
    }
}

impl Culprit {
    fn json(&self) -> Value {
        let mut object = Map::new();
        if let Some(rank) = self.rank {
            object.insert("rank".to_owned(), json!(rank));
        }
        if let Some(node) = &self.node {
            object.insert("node".to_owned(), json!(node));
        }
        if !self.nodes.is_empty() {
            object.insert("nodes".to_owned(), json!(self.nodes));
        }
        if let Some(gpu) = &self.gpu {
            object.insert("gpu".to_owned(), json!(gpu));
        }
        if !self.gpus.is_empty() {
            object.insert("gpus".to_owned(), json!(self.gpus));
        }
        Value::Object(object)
    }

    /// In words; empty where nobody is named.
    pub fn in_words(&self) -> String {
        let mut parts = Vec::new();
        if let Some(rank) = self.rank {
            parts.push(format!("rank {rank}"));
        }
        if let Some(node) = &self.node {
            parts.push(node.clone());
        } else if !self.nodes.is_empty() {
            parts.push(self.nodes.join(", "));
        }
        if let Some(gpu) = &self.gpu {
            parts.push(format!("GPU {gpu}"));
        } else if !self.gpus.is_empty() {
            parts.push(format!("GPUs {}", self.gpus.join(", ")));
        }
        parts.join(" on ")
    }
}

impl Signal {
    fn json(&self) -> Value {
        json!({ "file": self.file, "line": self.line, "meaning": self.meaning, "text": self.text })
    }
}

impl Answer {
    /// That nothing is wrong.
    pub(crate) fn no_fault(summary: impl Into<String>) -> Self {
        Self {
            fault: false,
            class: Class::Unknown,
            culprit: Culprit::default(),
            action: Action::ReportOnly,
            confidence: 0.7,
            signals: Vec::new(),
            secondary: Vec::new(),
            incidents: 0,
            next_step: "nothing".to_owned(),
            summary: summary.into(),
            events: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// A fault of this class, of which nothing more is known yet.
    pub(crate) fn of(class: Class, confidence: f64, summary: impl Into<String>) -> Self {
        Self {
            fault: true,
            class,
            action: class.usual_action(),
            confidence,
            incidents: 1,
            ..Self::no_fault(summary)
        }
    }

    /// The answer as one object. Fields are only ever added to it.
    pub fn json(&self) -> Value {
        let signals: Vec<Value> = self.signals.iter().map(Signal::json).collect();
        let secondary: Vec<Value> = self.secondary.iter().map(Signal::json).collect();
        let mut object = json!({
            "fault": self.fault,
            "class": self.class.name(),
            "culprit": self.culprit.json(),
            "action": self.action.name(),
            "confidence": (self.confidence * 100.0).round() / 100.0,
            "summary": self.summary,
            "signals": signals,
            "secondary": secondary,
            "incidents": self.incidents,
            "next_step": self.next_step,
            "notes": self.notes,
        });
        if !self.events.is_empty()
            && let Some(object) = object.as_object_mut()
        {
            object.insert("events".to_owned(), json!(self.events));
        }
        object
    }
}

/// How many of the lines that are only a consequence are shown to a person.
const SHOWN: usize = 6;

impl fmt::Display for Answer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.fault {
            let culprit = self.culprit.in_words();
            let who = if culprit.is_empty() {
                String::new()
            } else {
                format!("{culprit}: ")
            };
            writeln!(formatter, "verdict   {who}{}", self.summary)?;
            writeln!(
                formatter,
                "class     {}, confidence {:.0} %",
                self.class.name(),
                self.confidence * 100.0
            )?;
            writeln!(formatter, "action    {}", self.action.in_words())?;
            writeln!(formatter, "to do     {}", self.next_step)?;
        } else {
            writeln!(formatter, "verdict   no fault: {}", self.summary)?;
        }
        for signal in &self.signals {
            writeln!(formatter, "because   {signal}")?;
        }
        for signal in self.secondary.iter().take(SHOWN) {
            writeln!(formatter, "follows   {signal}")?;
        }
        if self.secondary.len() > SHOWN {
            writeln!(
                formatter,
                "follows   and {} more lines",
                self.secondary.len() - SHOWN
            )?;
        }
        for note in &self.notes {
            writeln!(formatter, "note      {note}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Signal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(formatter, "{}: {}", self.file, self.meaning)?,
            line => write!(formatter, "{}:{line}: {}", self.file, self.meaning)?,
        }
        if !self.text.is_empty() {
            write!(formatter, "\n            {}", self.text)?;
        }
        Ok(())
    }
}
