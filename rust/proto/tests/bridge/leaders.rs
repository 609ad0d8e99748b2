//! What one host hears of the leaders of others: which it follows, and by which STOP its workers end.

use std::sync::Arc;
use std::time::Instant;

use softs_proto::bridge::{Bridges, Output, VACANCY};
use softs_proto::broker::PeerId;
use softs_proto::client::NoLanes;
use softs_proto::control::{Model, Running};
use softs_proto::framing::Outbox;
use softs_proto::link::{Frame, HostId, Rights};

use crate::lane_model::Claim;

const LEADER: u64 = 11;
const OTHER: u64 = 12;
const STOP: u64 = 99;

/// A host, and sessions with others.
struct Host {
    link: Bridges<Claim, NoLanes>,
    now: Instant,
    n_connections: u64,
}

impl Host {
    fn new(here: Running) -> Self {
        let mut host = Self { link: Bridges::new(HostId(1)), now: Instant::now(), n_connections: 0 };
        host.link.models().set_here(host.now, here);
        host
    }

    /// A session with a host, by its number.
    fn join(&mut self, host: u64) -> PeerId {
        self.n_connections += 1;
        let id = PeerId(self.n_connections);
        assert!(self.link.sessions().accepted(self.now, id));
        self.hear(id, |out| Frame::Hello(HostId(host)).encode(out));
        let Some(Output::Frames(bytes)) = self.link.poll_output(id) else { panic!("no WELCOME") };
        let Ok(Frame::Welcome(_, session, _)) = Frame::decode(bytes[4], &bytes[5..]) else {
            panic!("{bytes:?}")
        };
        self.hear(id, |out| Frame::Begin(session).encode(out));
        id
    }

    fn cut(&mut self, id: PeerId) {
        self.link.disconnected(self.now, id, "cut");
        self.settle();
    }

    /// A host says what it runs: MODEL, as `docs/wire.md` has it.
    fn says(&mut self, id: PeerId, runs: &Running) {
        let flags = [u8::from(runs.is_own), u8::from(runs.is_stopped)];
        let numbers = [runs.leader.unwrap_or(0), runs.stop].map(u64::to_le_bytes);
        let model = runs.model.as_deref().map_or(vec![0; 8], |model| {
            let len = (model.model_id.len() as u32).to_le_bytes();
            [&model.generation.to_le_bytes()[..], &len, model.model_id.as_bytes(), &model.model_cfg].concat()
        });
        self.hear(id, |out| out.push(32, &[&flags, numbers.as_flattened(), &model]));
    }

    fn hear(&mut self, id: PeerId, encode: impl FnOnce(&mut Outbox)) {
        let mut out = Outbox::default();
        encode(&mut out);
        self.link.receive(self.now, id, &mut out.bytes());
    }

    fn settle(&mut self) {
        self.link.settle_models(self.now, |host| host.0.to_string());
    }

    /// The host that is followed, and whether its leader is there; if that has changed.
    fn follows(&mut self) -> Option<(String, bool)> {
        self.settle();
        self.link.models().take_followed().map(|followed| (followed.host, followed.is_led))
    }

    fn stop(&mut self) -> Option<u64> {
        self.settle();
        self.link.models().take_stop()
    }
}

fn runs(generation: u64) -> Running {
    let model = Model { generation, model_id: "m".to_owned(), model_cfg: b"\xc0".to_vec() };
    Running { model: Some(Arc::new(model)), ..Running::default() }
}

fn led(generation: u64, leader: u64) -> Running {
    Running { is_own: true, leader: Some(leader), ..runs(generation) }
}

fn stopped(generation: u64) -> Running {
    Running { stop: STOP, is_stopped: true, ..led(generation, LEADER) }
}

#[test]
fn a_stop_that_holds_ends_the_workers_of_a_host_that_joins_again() {
    let is_over = Running { is_stopped: false, ..stopped(3) };
    for (here, there, expected, why) in [
        (runs(3), stopped(3), Some(STOP), "its workers run the model of the leader"),
        (runs(2), stopped(3), Some(STOP), "or one before"),
        (Running::default(), stopped(3), None, "they have started since"),
        (runs(3), Running { model: runs(4).model, ..is_over.clone() }, None, "there is another model"),
        (runs(3), Running { leader: None, ..is_over.clone() }, None, "the leader has ended"),
        (runs(3), Running { leader: Some(OTHER), ..is_over }, None, "that was another leader"),
        (led(3, OTHER), stopped(3), None, "they have a leader of their own"),
        (runs(3), Running { is_own: false, ..stopped(3) }, None, "it goes one hop"),
    ] {
        let mut host = Host::new(here);
        let id = host.join(2);
        host.says(id, &there);
        assert_eq!(host.stop(), expected, "{why}");
        assert_eq!(host.stop(), None, "once");
        host.cut(id);
        let id = host.join(2);
        host.says(id, &there);
        assert_eq!(host.stop(), None, "{why}, and it was carried out");
    }
}

#[test]
fn a_stop_waits_until_it_is_known_what_runs_here() {
    let mut host = Host { link: Bridges::new(HostId(1)), now: Instant::now(), n_connections: 0 };
    let id = host.join(2);
    host.says(id, &stopped(3));
    assert_eq!(host.stop(), None);
    host.link.models().set_here(host.now, runs(3));
    assert_eq!(host.stop(), Some(STOP));
}

#[test]
fn a_host_that_is_joined_hears_of_each_stop_whatever_follows_it() {
    let now = Running { stop: STOP, ..led(3, LEADER) };
    for (here, there) in [
        (runs(3), Running { is_stopped: true, ..now.clone() }),
        (Running::default(), Running { is_stopped: true, ..now.clone() }),
        (runs(3), Running { model: runs(4).model, ..now.clone() }),
        (runs(3), Running { leader: None, ..now.clone() }),
    ] {
        let mut host = Host::new(here);
        let id = host.join(2);
        host.says(id, &led(3, LEADER));
        assert_eq!(host.stop(), None);
        host.says(id, &there);
        assert_eq!(host.stop(), Some(STOP), "{there:?}");
        host.says(id, &Running { stop: STOP + 1, ..there });
        assert_eq!(host.stop(), Some(STOP + 1));
    }
    // Both come before it is decided that it is followed again.
    let mut host = Host::new(runs(3));
    let id = host.join(2);
    host.says(id, &led(3, LEADER));
    host.settle();
    host.cut(id);
    let id = host.join(2);
    host.says(id, &led(3, LEADER));
    host.says(id, &stopped(3));
    assert_eq!(host.stop(), Some(STOP));
}

#[test]
fn the_seat_of_a_leader_that_was_cut_off_is_kept_from_all_others() {
    let mut host = Host::new(Running::default());
    let (first, second) = (host.join(2), host.join(3));
    host.says(first, &led(3, LEADER));
    host.says(second, &Running::default());
    assert_eq!(host.follows(), Some(("2".to_owned(), true)));
    host.cut(first);
    // One that was joined, and one that comes.
    let third = host.join(4);
    for id in [second, third] {
        host.says(id, &led(4, OTHER));
        host.says(id, &Running { stop: STOP, is_stopped: true, ..led(4, OTHER) });
    }
    assert_eq!((host.follows(), host.stop()), (None, None), "the first one may be there");
    // Its link was killed, and is another host now.
    let again = host.join(5);
    host.says(again, &led(5, LEADER));
    assert_eq!(host.follows(), Some(("5".to_owned(), true)));
    host.cut(again);
    host.now += VACANCY;
    assert!(host.follows().is_some_and(|(name, is_led)| is_led && name != "5"));
    assert_eq!(host.stop(), None, "that was before");
}

#[test]
fn neither_a_model_nor_a_stop_of_a_host_that_may_set_none_is_followed() {
    let mut host = Host::new(runs(3));
    let (teacher, student) = (host.join(2), host.join(3));
    host.link.sessions().restrict(teacher, Rights { orders: false, ..Rights::ALL });
    host.says(teacher, &led(4, LEADER));
    for stop in [stopped(4), Running { stop: STOP + 1, ..runs(4) }] {
        host.says(teacher, &stop);
        assert_eq!((host.follows().is_some_and(|(_, is_led)| is_led), host.stop()), (false, None));
    }
    let Some(Output::Frames(bytes)) = host.link.poll_output(teacher) else { panic!("it is not told") };
    assert!(String::from_utf8_lossy(&bytes).contains("needs the role student"));
    host.says(student, &led(5, OTHER));
    assert_eq!(host.follows(), Some(("3".to_owned(), true)));
}

#[test]
fn a_host_that_may_set_no_models_uses_up_no_generations() {
    let mut host = Host::new(runs(3));
    let teacher = host.join(2);
    host.link.sessions().restrict(teacher, Rights { orders: false, ..Rights::ALL });
    host.says(teacher, &runs((1 << 61) - 1));
    host.settle();
    let above = host.link.models().take_followed().map_or(0, |followed| followed.above);
    assert!(above <= 3, "the next model of any host here is {}", above + 1);
}

#[test]
fn a_host_that_may_set_no_models_unseats_no_leader_under_its_name() {
    let mut host = Host::new(runs(3));
    let student = host.join(3);
    host.link.sessions().restrict(student, Rights { serves: false, ..Rights::ALL });
    host.says(student, &led(4, LEADER));
    assert_eq!(host.follows(), Some(("3".to_owned(), true)));
    let teacher = host.join(3);
    host.link.sessions().restrict(teacher, Rights { orders: false, ..Rights::ALL });
    host.link.disconnected(host.now, student, "a newer session has begun");
    host.settle();
    host.says(teacher, &Running::default());
    assert_eq!(host.follows(), None, "the leader is there");
}
