//! Models between hosts: which leader this host follows, and with which hosts it runs the same model.
//!
//! Each host tells the others what it runs. While no student of rank 0 is here, the leader of one other host leads this
//! one too: that of the first host which says that it has one. A model goes one hop, for only a host's own ones are
//! followed. A second leader is refused with one warning, and what the first one leaves is not its own at once: links and
//! brokers that were killed have [`VACANCY`] to start again.
//!
//! A STOP of the leader ends the workers of each host that is joined then, and of one that was cut off and joins again while
//! the STOP holds. Workers of a host that has had no model yet have started since, and go on.
//!
//! Samples of a generation (products `gen/GENERATION/RANK`) are made for hosts that run the same model under the same
//! number, so never for a leader that is not followed.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::model_frames::ModelFrame;
use crate::control::{Followed, Model, Running};
use crate::framing::{MessageError, Outbox};
use crate::link::HostId;
use crate::log::{Level, LogRecord};

/// How long the place of a leader that has gone is kept from those that were refused, and of one that was cut off from all.
pub const VACANCY: Duration = Duration::from_secs(10);

/// For the host itself.
const NO_RIGHT: &str = "by its certificate this host may set no models; it needs the role student";

/// The state machine.
#[derive(Debug, Default)]
pub struct Models {
    /// What runs here, as the broker says; `None`: it has said nothing yet.
    here: Option<Running>,
    hosts: BTreeMap<HostId, Remote>,
    /// The other host that has the leader of this one.
    leader: Option<HostId>,
    /// That leader, or the last one.
    led_by: Option<u64>,
    /// There is none, and until when those that were refused wait. After a cut all others do.
    vacant_until: Option<Instant>,
    /// The highest generation that another host has had.
    above: u64,
    /// The broker has been told so; whether it is still to hear it.
    followed: Followed,
    has_news: bool,
    /// The last STOP of another host that is for workers of this one; whether the broker is still to hear it.
    stop: u64,
    stops: bool,
    /// Something was said that [`Self::settle`] has not seen.
    is_unsettled: bool,
    /// With which hosts the same model runs may have changed.
    has_moved: bool,
    log: VecDeque<LogRecord>,
    /// What hosts have said of the leader of this one.
    complaints: VecDeque<String>,
}

#[derive(Debug, Default)]
struct Remote {
    runs: Running,
    /// It has said so in this session.
    has_spoken: bool,
    runs_the_same: bool,
    is_refused: bool,
    /// Why it is, of which it is to be told.
    refusal: Option<String>,
    /// MODEL is to be sent.
    is_due: bool,
    /// This host may have missed a STOP that holds there.
    is_stopped: bool,
    /// What it has said of this host's leader.
    complaint: Option<String>,
}

impl Remote {
    fn leads(&self) -> bool {
        self.runs.is_own && self.runs.leader.is_some() && self.runs.model.is_some()
    }
}

impl Models {
    /// The broker of this host says what runs here. One that was restarted knows of no model for a while, but workers do.
    pub fn set_here(&mut self, now: Instant, mut runs: Running) {
        if let (None, Some(before)) = (&runs.model, &self.here) {
            (runs.model, runs.is_own) = (before.model.clone(), before.is_own);
        }
        if self.here.as_ref() == Some(&runs) {
            return;
        }
        if self.here.as_ref().is_some_and(|before| before.leader.is_some()) && runs.leader.is_none() {
            self.vacant_until = Some(now + VACANCY);
        }
        self.here = Some(runs);
        for remote in self.hosts.values_mut() {
            remote.is_due = true;
            remote.runs_the_same = is_same(self.here.as_ref(), &remote.runs);
        }
        (self.is_unsettled, self.has_moved) = (true, true);
    }

    /// The STOP by which the workers of this host are to end, because the leader of another one has said so.
    pub fn take_stop(&mut self) -> Option<u64> {
        std::mem::take(&mut self.stops).then_some(self.stop)
    }

    /// What the broker is to follow, if that has changed.
    pub fn take_followed(&mut self) -> Option<Followed> {
        std::mem::take(&mut self.has_news).then(|| self.followed.clone())
    }

    /// The next line of log.
    pub fn poll_log(&mut self) -> Option<LogRecord> {
        self.log.pop_front()
    }

    /// The next host that does not follow the leader of this one, and why. It may say so as often as it likes.
    pub fn poll_complaint(&mut self) -> Option<String> {
        self.complaints.pop_front()
    }

    /// Whether [`Self::settle`] is due.
    #[must_use]
    pub fn is_unsettled(&self) -> bool {
        self.is_unsettled
    }

    /// Decides which leader this host follows. `name`: where a host is.
    pub fn settle(&mut self, now: Instant, name: impl Fn(HostId) -> String) {
        let is_over = self.vacant_until.take_if(|at| *at <= now).is_some();
        if !std::mem::take(&mut self.is_unsettled) && !is_over {
            return;
        }
        for (host, remote) in &mut self.hosts {
            if let Some(why) = remote.complaint.take() {
                let text =
                    format!("the host at {} does not follow the leader of this host: {why}", name(*host));
                self.complaints.push_back(text);
            }
        }
        let was_cut = self.was_cut();
        let Some(here) = &self.here else { return };
        let has_leader = here.leader.is_some();
        let gone = self.leader.take_if(|host| has_leader || !self.hosts.get(host).is_some_and(Remote::leads));
        // The leader of a host that is cut off may well be there.
        let is_kept = match gone {
            Some(host) => !self.hosts.get(&host).is_some_and(|remote| remote.has_spoken),
            None => was_cut,
        };
        if has_leader || self.leader.is_some() {
            self.vacant_until = None;
        } else if gone.is_some() {
            self.vacant_until = Some(now + VACANCY);
        }
        if !has_leader && self.leader.is_none() {
            let is_vacant = self.vacant_until.is_some();
            let has_to_wait = |remote: &Remote| {
                is_vacant && (remote.is_refused || is_kept && remote.runs.leader != self.led_by)
            };
            let mut others = self
                .hosts
                .iter_mut()
                .filter(|(_, remote)| remote.leads() && !has_to_wait(remote) && !clashes(here, &remote.runs));
            if let Some((&host, remote)) = others.next() {
                remote.is_refused = false;
                self.leader = Some(host);
            }
        }
        if let Some(remote) = self.leader.and_then(|host| self.hosts.get(&host)) {
            (self.led_by, self.vacant_until) = (remote.runs.leader, None);
        }
        for (host, remote) in &mut self.hosts {
            let is_missed = std::mem::take(&mut remote.is_stopped) && self.leader == Some(*host);
            if is_missed && here.model.is_some() {
                (self.stop, self.stops) = (remote.runs.stop, true);
            }
        }
        self.refuse_others(has_leader, &name);
        let nothing = Followed { above: self.above, ..Followed::default() };
        let followed = match self.leader {
            Some(host) => self.followed(host, true, &name),
            None if has_leader => nothing,
            None if is_kept => return,
            None => self.remembered().map_or(nothing, |host| self.followed(host, false, &name)),
        };
        self.has_news |= followed != self.followed;
        self.followed = followed;
    }

    /// When [`Self::settle`] should be called even if nothing happens.
    pub(super) fn next_at(&self) -> Option<Instant> {
        self.vacant_until
    }

    pub(super) fn begin(&mut self, host: HostId) {
        let has_model = self.here.is_some();
        self.hosts.entry(host).or_insert_with(|| Remote {
            runs_the_same: is_same(self.here.as_ref(), &Running::default()),
            is_due: has_model,
            ..Remote::default()
        });
    }

    pub(super) fn end(&mut self, host: HostId) {
        self.hosts.remove(&host);
        self.is_unsettled = true;
    }

    /// `leads`: whether students of the host may set models.
    pub(super) fn handle(
        &mut self,
        host: HostId,
        leads: bool,
        kind: u8,
        payload: &[u8],
    ) -> Result<(), MessageError> {
        let frame = ModelFrame::decode(kind, payload)?;
        self.begin(host);
        let is_led_here = self.here.as_ref().is_some_and(|here| here.leader.is_some());
        let is_led_by_others = self.was_cut() || self.leader.is_some_and(|leader| leader != host);
        let Some(remote) = self.hosts.get_mut(&host) else { return Ok(()) };
        match frame {
            ModelFrame::Model(mut runs) => {
                if !leads {
                    let is_led = runs.is_own && runs.leader.is_some();
                    if is_led {
                        remote.refusal = Some(NO_RIGHT.to_owned());
                    }
                    runs = Running { model: runs.model, ..Running::default() };
                } else if let Some(model) = &runs.model {
                    self.above = self.above.max(model.generation);
                }
                remote.runs_the_same = is_same(self.here.as_ref(), &runs);
                let is_news = ![0, remote.runs.stop, self.stop].contains(&runs.stop);
                let is_led = !is_led_here && !is_led_by_others && !remote.is_refused;
                // The leader may have left, or set the next model, at the same time.
                let is_heard = is_news && is_led && remote.has_spoken;
                if is_heard {
                    (self.stop, self.stops) = (runs.stop, true);
                }
                remote.is_stopped = runs.is_stopped && !is_heard && (remote.is_stopped || is_news);
                (remote.runs, remote.has_spoken) = (runs, true);
                self.has_moved = true;
            }
            ModelFrame::Unfollowed(why) => remote.complaint = Some(why),
        }
        self.is_unsettled = true;
        Ok(())
    }

    /// Appends frames for a host.
    pub(super) fn encode(&mut self, host: HostId, out: &mut Outbox) {
        let Some(remote) = self.hosts.get_mut(&host) else { return };
        let is_due = std::mem::take(&mut remote.is_due);
        if let Some(here) = self.here.as_ref().filter(|_| is_due) {
            ModelFrame::Model(here.clone()).encode(out);
        }
        if let Some(why) = remote.refusal.take() {
            ModelFrame::Unfollowed(why).encode(out);
        }
    }

    /// Whether samples of a generation are made here for a host: both run its model. Where there are no models, nothing
    /// is known of generations.
    pub(super) fn serves(&self, host: HostId, generation: u64) -> bool {
        let Some(remote) = self.hosts.get(&host).filter(|remote| remote.runs_the_same) else { return false };
        remote.runs.model.as_ref().is_none_or(|model| model.generation == generation)
    }

    /// Whether a generation is not the one that runs here.
    pub(super) fn is_past(&self, generation: u64) -> bool {
        self.model().is_some_and(|model| model.generation != generation)
    }

    /// Whether [`Self::serves`] may have changed since the last call.
    pub(super) fn take_moved(&mut self) -> bool {
        std::mem::take(&mut self.has_moved)
    }

    /// Whether the leader of this host was cut off with its host, and may be there.
    fn was_cut(&self) -> bool {
        self.leader.is_none() && self.vacant_until.is_some() && self.followed.is_led
    }

    fn model(&self) -> Option<&Arc<Model>> {
        self.here.as_ref()?.model.as_ref()
    }

    /// Tells once which leaders are not followed, while another one leads here.
    fn refuse_others(&mut self, has_leader: bool, name: &impl Fn(HostId) -> String) {
        let leader = self.leader.map(name);
        let is_led = has_leader || leader.is_some();
        for (&host, remote) in &mut self.hosts {
            let has_clash = self.here.as_ref().is_some_and(|here| clashes(here, &remote.runs));
            if !is_led && !has_clash {
                continue;
            }
            if !remote.leads() || self.leader == Some(host) || std::mem::replace(&mut remote.is_refused, true)
            {
                continue;
            }
            let why = match &leader {
                None if !has_leader => {
                    let text = "another model runs under the same generation; call set_model() again";
                    remote.refusal = Some(format!("there {text}"));
                    format!("here {text} there")
                }
                None => "this host has one, too; each keeps its own models".to_owned(),
                Some(leader) => {
                    remote.refusal =
                        Some(format!("it follows that of the host at {leader}; stop one of both"));
                    format!("this host follows that of the host at {leader}; stop one of both")
                }
            };
            let text = format!("the leader of the host at {} is not followed: {why}", name(host));
            self.log.push_back(LogRecord { level: Level::Warning, text });
        }
    }

    /// The host that remembers the newest model of its own.
    fn remembered(&self) -> Option<HostId> {
        let own = self.hosts.iter().filter(|(_, remote)| remote.runs.is_own && !remote.leads());
        let models = own.filter_map(|(host, remote)| Some((remote.runs.model.as_ref()?.generation, *host)));
        models.max().map(|(_, host)| host)
    }

    fn followed(&self, host: HostId, is_led: bool, name: impl Fn(HostId) -> String) -> Followed {
        let model = self.hosts.get(&host).and_then(|remote| remote.runs.model.clone());
        Followed { host: name(host), is_led, model, above: self.above }
    }
}

/// Whether a host has another model than this one under the same number: workers tell samples by their numbers alone.
fn clashes(here: &Running, there: &Running) -> bool {
    let (Some(here), Some(there)) = (&here.model, &there.model) else { return false };
    here.generation == there.generation && here != there
}

fn is_same(here: Option<&Running>, there: &Running) -> bool {
    here.and_then(|here| here.model.as_ref()) == there.model.as_ref()
}
