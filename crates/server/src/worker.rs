//! The engine's own thread: requests come in by a channel, events go out by one channel a request.
//!
//! The thread loads the model, then steps the engine as long as there is work. Whoever drops an [`Answer`] cancels its request, which
//! frees slot and pages before the next step.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Arc, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::Instant;

use mlxcel_engine::{Engine, Event, Recording, Request, RequestError, RequestId, Running};
use tokio::sync::{mpsc, oneshot, watch};

use crate::metrics::Metrics;

/// Why a request was not taken.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// The client's fault.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// As many wait as may.
    #[error("{waiting} requests are waiting, as many as --max-queue-depth allows; try again later")]
    Full {
        /// How many.
        waiting: usize,
    },
    /// The model is not there yet.
    #[error("the model is being loaded; try again in a moment")]
    Loading,
    /// The engine has ended.
    #[error("the engine has stopped: {0}")]
    Dead(String),
}

/// How the engine is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// The model is being loaded.
    Loading,
    /// It takes requests.
    Ready,
    /// It has ended, for this reason.
    Dead(String),
}

/// What the thread tells others after each step.
#[derive(Clone, Debug)]
pub struct Status {
    /// How the engine is doing.
    pub state: State,
    /// Requests in slots.
    pub running: Vec<Running>,
    /// Requests that wait for one.
    pub waiting: usize,
    /// KV pages in use, all groups together, the prefix cache's included.
    pub pages: usize,
    /// Of those, the pages of requests in slots.
    pub pages_in_use: usize,
}

/// What loading gives.
pub struct Ready<F> {
    /// The engine.
    pub engine: Engine,
    /// What routes need to know of it.
    pub facts: F,
}

enum Command {
    Submit {
        request: Box<Request>,
        events: mpsc::UnboundedSender<Event>,
        reply: oneshot::Sender<Result<RequestId, Refusal>>,
    },
    Cancel(RequestId),
    Stop,
}

/// A handle to the thread.
pub struct Worker<F> {
    commands: Sender<Command>,
    status: Arc<RwLock<Status>>,
    facts: Arc<RwLock<Option<Arc<F>>>>,
    thread: RwLock<Option<JoinHandle<()>>>,
    ended: watch::Receiver<Option<String>>,
}

/// A request in progress: its events. Dropping it cancels the request.
pub struct Answer {
    /// The request.
    pub id: RequestId,
    events: mpsc::UnboundedReceiver<Event>,
    commands: Sender<Command>,
    done: bool,
}

impl Answer {
    /// The next event; `None` after the final one, or when the engine has ended.
    pub async fn next(&mut self) -> Option<Event> {
        if self.done {
            return None;
        }
        let event = self.events.recv().await;
        self.done = matches!(event, None | Some(Event::Finished(_)));
        event
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        if !self.done {
            // A thread that is gone has nothing to cancel.
            let _ = self.commands.send(Command::Cancel(self.id));
        }
    }
}

impl<F: Send + Sync + 'static> Worker<F> {
    /// Starts the thread, which loads first. `queue` is the most requests that may wait.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub fn start(
        queue: usize,
        metrics: Arc<Metrics>,
        load: impl FnOnce() -> Result<Ready<F>, String> + Send + 'static,
    ) -> std::io::Result<Worker<F>> {
        let (commands, inbox) = channel();
        let status = Status { state: State::Loading, running: Vec::new(), waiting: 0, pages: 0, pages_in_use: 0 };
        let (status, facts) = (Arc::new(RwLock::new(status)), Arc::new(RwLock::new(None)));
        let (own_status, own_facts) = (Arc::clone(&status), Arc::clone(&facts));
        let (end, ended) = watch::channel(None);
        let thread = std::thread::Builder::new().name("mlxcel-engine".into()).spawn(move || {
            let loaded =
                catch_unwind(AssertUnwindSafe(load)).unwrap_or_else(|_| Err("loading the model panicked".into()));
            let why = match loaded {
                Err(why) => why,
                Ok(Ready { engine, facts }) => {
                    *own_facts.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(facts));
                    let mut serving = Serving { engine, streams: HashMap::new(), queue, metrics, status: &own_status };
                    serving.tell(State::Ready);
                    let lost = catch_unwind(AssertUnwindSafe(|| serving.run(&inbox)));
                    lost.map_or_else(|_| "it panicked".into(), |lost| lost.unwrap_or_else(|| "it was shut down".into()))
                }
            };
            let state = State::Dead(why.clone());
            *own_status.write().unwrap_or_else(PoisonError::into_inner) =
                Status { state, running: Vec::new(), waiting: 0, pages: 0, pages_in_use: 0 };
            let _ = end.send(Some(why)); // nobody may be waiting for it
        })?;
        Ok(Worker { commands, status, facts, thread: RwLock::new(Some(thread)), ended })
    }

    /// How it is doing.
    pub fn status(&self) -> Status {
        self.status.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits until the thread has ended, and says why. By then everybody who waits for an answer was told.
    pub async fn ended(&self) -> String {
        let mut ended = self.ended.clone();
        let why = ended.wait_for(Option::is_some).await.ok().and_then(|why| why.clone());
        why.unwrap_or_else(|| "it broke off".into())
    }

    /// What is known of the engine; `None` while it loads.
    pub fn facts(&self) -> Option<Arc<F>> {
        self.facts.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Queues a request.
    ///
    /// # Errors
    /// The engine is loading or has ended, the queue is full, or the engine refuses the request.
    pub async fn submit(&self, request: Request) -> Result<Answer, Refusal> {
        match self.status().state {
            State::Loading => return Err(Refusal::Loading),
            State::Dead(why) => return Err(Refusal::Dead(why)),
            State::Ready => {}
        }
        let ((events, receiver), (reply, taken)) = (mpsc::unbounded_channel(), oneshot::channel());
        let gone = || Refusal::Dead("it ended while the request was on its way".into());
        self.commands.send(Command::Submit { request: Box::new(request), events, reply }).map_err(|_| gone())?;
        let id = taken.await.map_err(|_| gone())??;
        Ok(Answer { id, events: receiver, commands: self.commands.clone(), done: false })
    }

    /// Ends the thread after its current step, and waits for it. Requests that are not finished are cancelled.
    pub fn stop(&self) {
        let _ = self.commands.send(Command::Stop);
        if let Some(thread) = self.thread.write().unwrap_or_else(PoisonError::into_inner).take() {
            let _ = thread.join();
        }
    }
}

/// Where a request's events go.
struct Stream {
    events: mpsc::UnboundedSender<Event>,
    /// When it came, until its first token.
    waiting_since: Option<Instant>,
}

/// The thread's side.
struct Serving<'a> {
    engine: Engine,
    streams: HashMap<RequestId, Stream>,
    queue: usize,
    metrics: Arc<Metrics>,
    status: &'a RwLock<Status>,
}

impl Serving<'_> {
    /// Serves until there is nobody left to ask, or it is told to stop; or until the device fails, and then says how.
    fn run(&mut self, inbox: &Receiver<Command>) -> Option<String> {
        self.engine.set_recording(Recording::Rounds);
        loop {
            if self.engine.is_idle() {
                // Nothing to do until somebody asks.
                let command = inbox.recv().ok()?;
                if !self.take(command) {
                    return None;
                }
            }
            loop {
                match inbox.try_recv() {
                    Ok(command) => {
                        if !self.take(command) {
                            return None;
                        }
                    }
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) => return None,
                }
            }
            if !self.engine.is_idle() {
                let events = self.engine.step();
                self.metrics.step(&self.engine, &events);
                let lost = self.engine.failure().map(str::to_string);
                // Whoever hears that an answer ended finds its slot free, or the engine gone.
                self.tell(lost.clone().map_or(State::Ready, State::Dead));
                events.into_iter().for_each(|event| self.deliver(event));
                for warning in self.engine.take_warnings() {
                    tracing::warn!("{warning}");
                }
                if lost.is_some() {
                    return lost;
                }
            }
            if self.engine.is_idle() {
                self.tell(State::Ready);
            }
        }
    }

    /// Does what is asked; false for the end.
    fn take(&mut self, command: Command) -> bool {
        match command {
            Command::Submit { request, events, reply } => {
                let waiting = self.engine.waiting();
                // Of those that wait, as many as there are free slots leave the queue in the next step.
                let result = if waiting >= self.queue.saturating_add(self.engine.free_slots()) {
                    Err(Refusal::Full { waiting })
                } else {
                    self.engine.submit(*request).map_err(Refusal::from)
                };
                match &result {
                    Ok(id) => {
                        self.streams.insert(*id, Stream { events, waiting_since: Some(Instant::now()) });
                    }
                    Err(_) => self.metrics.refused(),
                }
                let id = result.as_ref().ok().copied();
                // Whoever asked may have gone away meanwhile.
                if reply.send(result).is_err()
                    && let Some(id) = id
                {
                    self.cancel(id);
                }
                true
            }
            Command::Cancel(id) => {
                self.cancel(id);
                true
            }
            Command::Stop => {
                let ids: Vec<RequestId> = self.streams.keys().copied().collect();
                ids.into_iter().for_each(|id| self.cancel(id));
                false
            }
        }
    }

    fn cancel(&mut self, id: RequestId) {
        if let Some(event) = self.engine.cancel(id) {
            self.metrics.step(&self.engine, std::slice::from_ref(&event));
            self.deliver(event);
        }
        self.streams.remove(&id);
    }

    fn deliver(&mut self, event: Event) {
        let (id, last) = match &event {
            Event::Token(token) => (token.id, false),
            Event::Finished(end) => (end.id, true),
        };
        // Nobody listens: the answer was dropped, and its cancellation is on the way.
        if let Some(stream) = self.streams.get_mut(&id) {
            if let Some(since) = stream.waiting_since.take().filter(|_| !last) {
                self.metrics.first_token(since.elapsed());
            }
            let _ = stream.events.send(event);
        }
        if last {
            self.streams.remove(&id);
        }
    }

    fn tell(&self, state: State) {
        let running = self.engine.running().collect();
        let pages = self.engine.pages_used().iter().sum();
        let pages_in_use = self.engine.pages_in_use().iter().sum();
        let status = Status { state, running, waiting: self.engine.waiting(), pages, pages_in_use };
        self.metrics.now(&status);
        *self.status.write().unwrap_or_else(PoisonError::into_inner) = status;
    }
}
