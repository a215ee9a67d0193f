//! One-way streams between any two ranks: what the service thread and the callers of the fabric share about them.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use nuvec_transport::{Error, GroupId, Kind, Peer, Result, Wake};
use parking_lot::Mutex;

use crate::channel::{Connection, TcpReceiver, TcpSender};
use crate::socket::Stream;

/// The most streams that wait here, whole or not, until somebody takes them.
const MOST_WAITING: usize = 1024;

/// A group, and the rank at the other end.
pub(crate) type StreamId = (GroupId, usize);

/// A stream that this rank opens.
struct Opening {
    wake: Arc<Wake>,
    /// What each stripe has become so far.
    stripes: Vec<Option<TcpSender>>,
    result: Option<Result<Vec<TcpSender>>>,
}

/// A stream that another rank opens.
struct Arrival {
    /// The stripes that nobody has taken.
    stripes: Vec<Option<TcpReceiver>>,
    /// Every stripe's connection, also once it was taken.
    connections: Vec<Weak<Connection>>,
}

#[derive(Default)]
struct State {
    ended: bool,
    opening: HashMap<StreamId, Opening>,
    groups: HashMap<GroupId, Arc<Wake>>,
    arrivals: HashMap<StreamId, Arrival>,
}

/// The streams of one fabric.
pub(crate) struct Streams {
    stripes: usize,
    most_waiting: usize,
    state: Mutex<State>,
}

impl Streams {
    pub(crate) fn new(stripes: usize) -> Self {
        Self { stripes, most_waiting: MOST_WAITING, state: Mutex::default() }
    }

    /// Notes that a stream is being opened; `false` if there is nothing to do: it is being opened already, or the
    /// transport has ended.
    pub(crate) fn begin(&self, key: StreamId, wake: &Arc<Wake>) -> bool {
        let mut state = self.state.lock();
        let ended = state.ended;
        if let Some(opening) = state.opening.get_mut(&key) {
            opening.wake = Arc::clone(wake);
            return false;
        }
        let result = ended.then(|| Err(closed()));
        let stripes = (0..self.stripes).map(|_| None).collect();
        state.opening.insert(key, Opening { wake: Arc::clone(wake), stripes, result });
        if ended {
            wake.notify();
        }
        !ended
    }

    /// Takes a stripe that stands; `true` once it was the last.
    pub(crate) fn stripe_opened(&self, key: StreamId, index: usize, sender: TcpSender) -> bool {
        let mut state = self.state.lock();
        let Some(opening) = state.opening.get_mut(&key) else { return false };
        let Some(slot) = opening.stripes.get_mut(index) else { return false };
        *slot = Some(sender);
        if opening.stripes.iter().any(Option::is_none) {
            return false;
        }
        opening.result = Some(Ok(opening.stripes.drain(..).flatten().collect()));
        opening.wake.notify();
        true
    }

    /// Ends an opening with an error.
    pub(crate) fn open_failed(&self, key: StreamId, error: Error) {
        if let Some(opening) = self.state.lock().opening.get_mut(&key) {
            opening.stripes.clear();
            opening.result.get_or_insert(Err(error));
            opening.wake.notify();
        }
    }

    /// Takes the result of an opening, once there is one.
    pub(crate) fn opened(&self, key: StreamId) -> Option<Result<Vec<TcpSender>>> {
        let mut state = self.state.lock();
        let result = state.opening.get_mut(&key)?.result.take()?;
        state.opening.remove(&key);
        Some(result)
    }

    /// From now on streams of that group are taken.
    pub(crate) fn accept(&self, group: GroupId, wake: &Arc<Wake>) {
        let mut state = self.state.lock();
        state.groups.insert(group, Arc::clone(wake));
        // A stream may have come between an earlier `accept` and this one.
        wake.notify();
    }

    /// Whether streams of that group are taken.
    pub(crate) fn accepts(&self, group: GroupId) -> bool {
        self.state.lock().groups.contains_key(&group)
    }

    /// Whether there is room for a stripe of that stream. There is for every stripe of one that has begun to arrive:
    /// else several that have arrived in part would wait for each other for ever.
    pub(crate) fn has_room(&self, key: StreamId) -> bool {
        let state = self.state.lock();
        let waits = |arrival: &Arrival| arrival.stripes.iter().any(Option::is_some);
        state.arrivals.get(&key).is_some_and(waits)
            || state.arrivals.values().filter(|arrival| waits(arrival)).count() < self.most_waiting
    }

    /// Whether the stripe is there and its sender still holds it.
    pub(crate) fn is_taken(&self, key: StreamId, index: usize) -> bool {
        let state = self.state.lock();
        let connection = state.arrivals.get(&key).and_then(|arrival| arrival.connections.get(index)?.upgrade());
        connection.is_some_and(|connection| connection.is_open())
    }

    /// Takes a stripe that another rank opened.
    pub(crate) fn arrived(&self, key: StreamId, index: usize, stream: Stream, peer: Peer) {
        let mut state = self.state.lock();
        let State { ended, groups, arrivals, .. } = &mut *state;
        let Some(wake) = groups.get(&key.0).filter(|_| !*ended) else { return };
        let arrival = arrivals.entry(key).or_insert_with(|| Arrival {
            stripes: (0..self.stripes).map(|_| None).collect(),
            connections: (0..self.stripes).map(|_| Weak::new()).collect(),
        });
        let receiver = TcpReceiver::alone(stream, peer);
        if let (Some(slot), Some(connection)) = (arrival.stripes.get_mut(index), arrival.connections.get_mut(index)) {
            *connection = receiver.watch();
            *slot = Some(receiver);
        }
        if arrival.stripes.iter().all(Option::is_some) {
            wake.notify();
        }
    }

    /// Takes a stream that another rank opened, once all its stripes are there.
    pub(crate) fn accepted(&self, key: StreamId) -> Option<Vec<TcpReceiver>> {
        let mut state = self.state.lock();
        let stripes = &mut state.arrivals.get_mut(&key)?.stripes;
        if stripes.iter().any(Option::is_none) {
            return None;
        }
        Some(stripes.iter_mut().filter_map(Option::take).collect())
    }

    /// Forgets a group: takes no more of its streams, gives up those that it opens, and closes what nobody took.
    pub(crate) fn leave(&self, group: GroupId) {
        let mut state = self.state.lock();
        state.groups.remove(&group);
        state.opening.retain(|key, _| key.0 != group);
        state.arrivals.retain(|key, _| key.0 != group);
    }

    /// The transport has ended: what is being opened fails, what nobody took is dropped, waiters are woken.
    pub(crate) fn end(&self) {
        let mut state = self.state.lock();
        state.ended = true;
        state.arrivals.clear();
        for opening in state.opening.values_mut() {
            opening.stripes.clear();
            opening.result.get_or_insert(Err(closed()));
            opening.wake.notify();
        }
        for (_, wake) in state.groups.drain() {
            wake.notify();
        }
    }
}

/// The error of what was being opened when the transport ended.
pub(crate) fn closed() -> Error {
    Error::new(Kind::Closed, "the group was closed")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::socket::pair;

    #[test]
    fn a_stream_that_has_begun_to_arrive_always_has_room_for_its_other_stripes() {
        let streams = Streams { most_waiting: 2, ..Streams::new(3) };
        streams.accept(GroupId::ROOT, &Arc::new(Wake::new().unwrap()));
        let key = |from| (GroupId::ROOT, from);
        let mut held = Vec::new();
        let mut arrive = |from, index| {
            assert!(streams.has_room(key(from)));
            let (theirs, own) = pair("127.0.0.1:0");
            held.push(theirs);
            streams.arrived(key(from), index, own, Peer::new(from, "a:1"));
        };
        arrive(1, 0);
        arrive(2, 0);
        assert!(!streams.has_room(key(3)));
        for from in [1, 2] {
            arrive(from, 1);
            arrive(from, 2);
        }
        assert_eq!(streams.accepted(key(1)).unwrap().len(), 3);
        assert!(streams.has_room(key(3)));
    }
}
