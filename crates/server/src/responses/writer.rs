//! From pieces of an answer to its items, and to the events that tell of them.

use mlxcel_protocol::openai::TokenLogprob;
use mlxcel_protocol::openai::responses::{
    Event, IncompleteDetails, OutputContent, OutputItem, ReasoningText, Response, Status,
};
use mlxcel_text::parse::Delta;

use crate::app::identifier;
use crate::generate::End;

/// An answer being written, one item open at a time.
pub struct Writer {
    /// The answer so far: its complete items.
    pub response: Response,
    open: Option<Open>,
    /// Log-probabilities of tokens whose text has not become certain.
    waiting: Vec<TokenLogprob>,
}

/// The item being written.
enum Open {
    Message { id: String, text: String, logprobs: Vec<TokenLogprob> },
    Reasoning { id: String, text: String },
    Call { id: String, call_id: String, name: String, arguments: String },
}

impl Open {
    /// The item as it is so far; a message that has just begun has no part yet.
    fn item(&self, status: Status, empty: bool) -> OutputItem {
        match self {
            Open::Message { id, text, logprobs } => {
                let part = part(text.clone(), logprobs.clone());
                let content = if empty { Vec::new() } else { vec![part] };
                OutputItem::Message { id: id.clone(), status, role: "assistant".into(), content }
            }
            Open::Reasoning { id, text } => {
                let content = if empty { Vec::new() } else { vec![ReasoningText { text: text.clone() }] };
                OutputItem::Reasoning { id: id.clone(), status, summary: Vec::new(), content }
            }
            Open::Call { id, call_id, name, arguments } => OutputItem::FunctionCall {
                id: id.clone(),
                status,
                call_id: call_id.clone(),
                name: name.clone(),
                arguments: arguments.clone(),
            },
        }
    }
}

fn part(text: String, logprobs: Vec<TokenLogprob>) -> OutputContent {
    OutputContent::OutputText { text, annotations: Vec::new(), logprobs }
}

impl Writer {
    /// Of an answer that has begun.
    pub fn new(response: Response) -> Self {
        Writer { response, open: None, waiting: Vec::new() }
    }

    /// Takes a token's log-probabilities; they come with the text that it makes certain.
    pub fn logprob(&mut self, logprob: TokenLogprob) {
        self.waiting.push(logprob);
    }

    /// Takes text, thoughts or calls; what a client is told of them.
    pub fn add(&mut self, delta: Delta) -> Vec<Event> {
        let mut events = Vec::new();
        match delta {
            Delta::Content(more) => {
                if !matches!(self.open, Some(Open::Message { .. })) {
                    let (id, text, logprobs) = (identifier("msg_"), String::new(), Vec::new());
                    self.enter(Open::Message { id, text, logprobs }, &mut events);
                }
                let (output_index, waiting) = (self.index(), std::mem::take(&mut self.waiting));
                if let Some(Open::Message { id, text, logprobs }) = &mut self.open {
                    text.push_str(&more);
                    logprobs.extend_from_slice(&waiting);
                    let (item_id, content_index) = (id.clone(), 0);
                    events.push(Event::OutputTextDelta {
                        item_id,
                        output_index,
                        content_index,
                        delta: more,
                        logprobs: waiting,
                    });
                }
            }
            Delta::Reasoning(more) => {
                // Only the text's log-probabilities have a place in this dialect.
                self.waiting.clear();
                if !matches!(self.open, Some(Open::Reasoning { .. })) {
                    self.enter(Open::Reasoning { id: identifier("rs_"), text: String::new() }, &mut events);
                }
                let output_index = self.index();
                if let Some(Open::Reasoning { id, text }) = &mut self.open {
                    text.push_str(&more);
                    let (item_id, content_index) = (id.clone(), 0);
                    events.push(Event::ReasoningTextDelta { item_id, output_index, content_index, delta: more });
                }
            }
            Delta::ToolCallStart { id, name, .. } => {
                self.waiting.clear();
                let call_id = id.unwrap_or_else(|| identifier("call_"));
                let call = Open::Call { id: identifier("fc_"), call_id, name, arguments: String::new() };
                self.enter(call, &mut events);
            }
            Delta::ToolCallArguments { json_fragment, .. } => {
                self.waiting.clear();
                let output_index = self.index();
                if let Some(Open::Call { id, arguments, .. }) = &mut self.open {
                    arguments.push_str(&json_fragment);
                    let item_id = id.clone();
                    events.push(Event::FunctionCallArgumentsDelta { item_id, output_index, delta: json_fragment });
                }
            }
            Delta::ToolCallEnd { .. } => self.close(Status::Completed, &mut events),
            Delta::ToolCallBroken { .. } => self.close(Status::Incomplete, &mut events),
        }
        events
    }

    /// Takes the end, which comes at `now` (seconds since 1970); what a client is told of it.
    pub fn end(&mut self, end: &End, now: u64) -> Vec<Event> {
        let mut events = Vec::new();
        let status = if end.cut { Status::Incomplete } else { Status::Completed };
        self.close(status, &mut events);
        let response = &mut self.response;
        response.status = status;
        response.usage = Some(end.usage().into());
        response.timings = Some(end.timings());
        if end.cut {
            response.incomplete_details = Some(IncompleteDetails { reason: "max_output_tokens".into() });
        } else {
            response.completed_at = Some(now);
        }
        let response = Box::new(response.clone());
        events.push(if end.cut { Event::Incomplete { response } } else { Event::Completed { response } });
        events
    }

    /// Place of the open item.
    fn index(&self) -> u64 {
        self.response.output.len() as u64
    }

    fn enter(&mut self, open: Open, events: &mut Vec<Event>) {
        self.close(Status::Completed, events);
        let output_index = self.index();
        events.push(Event::OutputItemAdded { output_index, item: open.item(Status::InProgress, true) });
        if let Open::Message { id, .. } = &open {
            let (item_id, content_index, part) = (id.clone(), 0, part(String::new(), Vec::new()));
            events.push(Event::ContentPartAdded { item_id, output_index, content_index, part });
        }
        self.open = Some(open);
    }

    fn close(&mut self, status: Status, events: &mut Vec<Event>) {
        let Some(mut open) = self.open.take() else { return };
        let (output_index, content_index) = (self.index(), 0);
        if let Open::Message { logprobs, .. } = &mut open {
            logprobs.append(&mut self.waiting);
        }
        let item = open.item(status, false);
        match open {
            Open::Message { id: item_id, text, logprobs } => {
                let part = part(text.clone(), logprobs.clone());
                let id = item_id.clone();
                events.push(Event::OutputTextDone { item_id, output_index, content_index, text, logprobs });
                events.push(Event::ContentPartDone { item_id: id, output_index, content_index, part });
            }
            Open::Reasoning { id: item_id, text } => {
                events.push(Event::ReasoningTextDone { item_id, output_index, content_index, text });
            }
            Open::Call { id: item_id, name, arguments, .. } => {
                events.push(Event::FunctionCallArgumentsDone { item_id, output_index, name, arguments });
            }
        }
        self.response.output.push(item.clone());
        events.push(Event::OutputItemDone { output_index, item });
    }
}

#[cfg(test)]
mod tests {
    use mlxcel_engine::Rounds;
    use mlxcel_protocol::Request as _;
    use mlxcel_protocol::openai::responses::ResponsesRequest;
    use serde_json::{Value, json};

    use super::*;

    fn writer() -> Writer {
        let request = ResponsesRequest::from_bytes(br#"{"input": "Hi"}"#).expect("a request");
        Writer::new(Response::begin("resp_1", 1, "model", &request))
    }

    fn end(cut: bool) -> End {
        End {
            cut,
            stop_string: None,
            called: false,
            prompt_tokens: 3,
            cached_tokens: 1,
            completion_tokens: 4,
            reasoning_tokens: 2,
            rounds: Rounds::default(),
            block_size: 1,
            seconds: (0.1, 0.1),
        }
    }

    fn names(events: &[Event]) -> Vec<&str> {
        events.iter().map(|event| event.name().trim_start_matches("response.")).collect()
    }

    #[test]
    fn thoughts_text_and_calls_are_items_with_their_events_in_order() {
        let mut writer = writer();
        let deltas = [
            Delta::Reasoning("Hm".into()),
            Delta::Reasoning(", so.".into()),
            Delta::Content("It is".into()),
            Delta::ToolCallStart { index: 0, id: None, name: "weather".into() },
            Delta::ToolCallArguments { index: 0, json_fragment: "{}".into() },
            Delta::ToolCallEnd { index: 0 },
        ];
        let mut events: Vec<Event> = deltas.into_iter().flat_map(|delta| writer.add(delta)).collect();
        events.extend(writer.end(&end(false), 5));
        let expected = [
            "output_item.added",
            "reasoning_text.delta",
            "reasoning_text.delta",
            "reasoning_text.done",
            "output_item.done",
            "output_item.added",
            "content_part.added",
            "output_text.delta",
            "output_text.done",
            "content_part.done",
            "output_item.done",
            "output_item.added",
            "function_call_arguments.delta",
            "function_call_arguments.done",
            "output_item.done",
            "completed",
        ];
        assert_eq!(names(&events), expected);
        let indices: Vec<Value> = events.iter().map(|event| json!(event)["output_index"].clone()).collect();
        assert_eq!(json!(indices), json!([0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, null]));
        let response = json!(writer.response);
        let kinds = |i: usize| (response["output"][i]["type"].clone(), response["output"][i]["status"].clone());
        assert_eq!(kinds(0), (json!("reasoning"), json!("completed")));
        assert_eq!(response["output"][0]["content"][0]["text"], "Hm, so.");
        assert_eq!(kinds(2), (json!("function_call"), json!("completed")));
        assert_eq!((&response["completed_at"], &response["usage"]["total_tokens"]), (&json!(5), &json!(7)));
    }

    #[test]
    fn what_is_cut_is_incomplete() {
        let mut writer = writer();
        writer.add(Delta::Content("It is".into()));
        let events = writer.end(&end(true), 5);
        assert_eq!(names(&events), ["output_text.done", "content_part.done", "output_item.done", "incomplete"]);
        let response = json!(writer.response);
        assert_eq!(response["output"][0]["status"], "incomplete");
        assert_eq!(response["incomplete_details"]["reason"], "max_output_tokens");
        assert_eq!(response["completed_at"], Value::Null);
    }

    #[test]
    fn log_probabilities_come_with_their_text_and_none_is_lost_at_the_end() {
        let mut writer = writer();
        let token = |text: &str| TokenLogprob { token: text.into(), logprob: -1.0, bytes: None, top_logprobs: vec![] };
        writer.logprob(token("thought"));
        writer.add(Delta::Reasoning("thought".into()));
        writer.logprob(token("a"));
        writer.logprob(token("b"));
        let events = writer.add(Delta::Content("ab".into()));
        let last = json!(events.last().expect("a delta"));
        assert_eq!(last["logprobs"].as_array().map(Vec::len), Some(2), "{last}");
        writer.logprob(token("held"));
        writer.end(&end(false), 5);
        let logprobs = &json!(writer.response)["output"][1]["content"][0]["logprobs"];
        assert_eq!(logprobs.as_array().map(Vec::len), Some(3), "{logprobs}");
    }
}
