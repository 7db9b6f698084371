//! Fields that are known and not acted on, as data.
//!
//! A field that could change the answer and is not supported is refused by its name, unless its value is the one that
//! changes nothing; a field that cannot change the answer is accepted in silence. Fields in neither a request type nor
//! these tables are refused as unknown.

/// What becomes of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// Accepted whatever it is: it cannot change the answer.
    Harmless,
    /// Accepted with one of these values (JSON texts), which ask for nothing; else refused with the reason.
    Only(&'static [&'static str], &'static str),
    /// Refused, with what to do instead.
    Refused(&'static str),
}

/// A field and its rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// The field's name at the top of the body.
    pub name: &'static str,
    /// What becomes of it.
    pub rule: Rule,
}

const fn harmless(name: &'static str) -> Parameter {
    Parameter { name, rule: Rule::Harmless }
}

const fn only(name: &'static str, values: &'static [&'static str], why: &'static str) -> Parameter {
    Parameter { name, rule: Rule::Only(values, why) }
}

const fn refused(name: &'static str, why: &'static str) -> Parameter {
    Parameter { name, rule: Rule::Refused(why) }
}

const SAMPLER: &str = "this server does not have that sampler";

/// Fields of every generating route: bookkeeping of hosted services, and the samplers and switches of other servers.
pub const COMMON: &[Parameter] = &[
    harmless("user"),
    harmless("store"),
    harmless("metadata"),
    harmless("service_tier"),
    harmless("safety_identifier"),
    harmless("prompt_cache_key"),
    harmless("prompt_cache_retention"),
    harmless("prompt_cache_options"),
    harmless("request_id"),
    // Cached prompts give the same bytes as fresh ones, so where one is computed is the server's own affair.
    harmless("id_slot"),
    harmless("n_cache_reuse"),
    harmless("priority"),
    // The knobs of samplers that are refused unless they are off.
    harmless("dynatemp_exponent"),
    harmless("mirostat_tau"),
    harmless("mirostat_eta"),
    harmless("xtc_threshold"),
    harmless("dry_base"),
    harmless("dry_allowed_length"),
    harmless("dry_penalty_last_n"),
    harmless("dry_sequence_breakers"),
    only("mirostat", &["0"], SAMPLER),
    only("typical_p", &["1"], SAMPLER),
    only("typ_p", &["1"], SAMPLER),
    only("tfs_z", &["1"], SAMPLER),
    only("top_a", &["0"], SAMPLER),
    only("top_n_sigma", &["-1", "0"], SAMPLER),
    only("xtc_probability", &["0"], SAMPLER),
    only("dry_multiplier", &["0"], SAMPLER),
    only("dynatemp_range", &["0"], SAMPLER),
    only("adaptive_target", &["-1"], SAMPLER),
    refused("samplers", "the order of filters is fixed: temperature, top_k, top_p, min_p"),
    only("repeat_last_n", &["-1"], "penalties see the whole context"),
    only("penalty_last_n", &["-1"], "penalties see the whole context"),
    only("min_tokens", &["0"], "the model decides when it has finished; ignore_eos turns that off"),
    only("min_keep", &["0"], SAMPLER),
    only("n_keep", &["0"], "the context is never shifted"),
    only("n_discard", &["0"], "the context is never shifted"),
    only("n_indent", &["0"], "not supported"),
    only("t_max_predict_ms", &["0", "-1"], "close the connection to stop an answer"),
    only("length_penalty", &["1"], "there is no beam search"),
    only("use_beam_search", &["false"], "there is no beam search"),
    only("early_stopping", &["false"], "there is no beam search"),
    only("include_stop_str_in_output", &["false"], "stop strings are cut off"),
    only("post_sampling_probs", &["false"], "log-probabilities are those of the model, before the sampler"),
    only("return_progress", &["false"], "not supported"),
    only("return_tokens", &["false"], "not supported"),
    refused("n_probs", "use logprobs and top_logprobs"),
    only("lora", &["[]"], "adapters are not loaded per request"),
];

const VERBOSITY: Parameter = only("verbosity", &["\"medium\""], "ask for short or long answers in a system message");

/// The `reasoning` object of `/v1/responses`.
pub const REASONING: &[Parameter] = &[
    // Asking for a summary is asking to see the reasoning, which is always given.
    harmless("summary"),
    harmless("generate_summary"),
    only("context", &["\"auto\""], "send the reasoning that shall be seen"),
    only("mode", &["\"standard\""], "not supported"),
];

/// The `text` object of `/v1/responses`.
pub const TEXT: &[Parameter] = &[VERBOSITY];

/// `/v1/chat/completions`.
pub const CHAT: &[Parameter] = &[
    // A guess at the answer: it could only change the speed.
    harmless("prediction"),
    only("modalities", &["[\"text\"]"], "answers are text"),
    VERBOSITY,
    only("add_generation_prompt", &["true"], "send the assistant's message last to have it continued"),
    only("continue_final_message", &["false"], "send the assistant's message last to have it continued"),
    only("echo", &["false"], "use /v1/completions to have the prompt repeated"),
    only("reasoning_format", &["\"auto\"", "\"deepseek\""], "reasoning comes in reasoning_content"),
    refused("audio", "answers are text"),
    refused("web_search_options", "this server does not search the web"),
    refused("functions", "use tools"),
    refused("function_call", "use tool_choice"),
    refused("enable_thinking", "put it into chat_template_kwargs"),
    refused("prompt", "use messages, or /v1/completions"),
    refused("guided_json", "use response_format with json_schema"),
    refused("guided_grammar", "use grammar"),
    refused("guided_regex", "use grammar"),
    refused("guided_choice", "use grammar"),
];

/// `/v1/completions`.
pub const COMPLETION: &[Parameter] = &[
    only("suffix", &["\"\""], "this server does not fill in the middle"),
    refused("messages", "use /v1/chat/completions for messages"),
    refused("tools", "use /v1/chat/completions for tools"),
    refused("prompt_embeds", "send text or token ids"),
];

/// `/v1/responses`.
pub const RESPONSES: &[Parameter] = &[
    // Only tools that a service runs itself are counted by it, and they are refused.
    harmless("max_tool_calls"),
    only("background", &["false"], "answers are not kept: stream them"),
    only("truncation", &["\"disabled\""], "shorten the input yourself: nothing is dropped in silence"),
    refused("previous_response_id", "answers are not kept: send the whole conversation as input"),
    refused("conversation", "conversations are not kept: send the whole conversation as input"),
    refused("prompt", "prompts are not kept: send instructions and input"),
    refused("context_management", "nothing is dropped or summarised: send the conversation as it shall be"),
    refused("messages", "use input, or /v1/chat/completions"),
    refused("max_tokens", "use max_output_tokens"),
    refused("response_format", "use text.format"),
];

/// `/v1/messages` and `/v1/messages/count_tokens`.
pub const MESSAGES: &[Parameter] = &[
    harmless("betas"),
    harmless("speed"),
    harmless("diagnostics"),
    harmless("user_profile_id"),
    harmless("workspace_id"),
    harmless("inference_geo"),
    harmless("anthropic_version"),
    // Where to cache a prompt; prefixes are cached without being asked.
    harmless("cache_control"),
    only("mcp_servers", &["[]"], "this server calls no other servers"),
    refused("container", "this server runs no code"),
    refused("context_management", "nothing is dropped or summarised: send the conversation as it shall be"),
    refused("stop", "use stop_sequences"),
    refused("response_format", "use output_config.format"),
];

/// `/tokenize`, `/detokenize`, `/apply-template`.
pub const NATIVE: &[Parameter] = &[harmless("model")];

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn tables_are_well_formed() {
        for table in [CHAT, COMPLETION, RESPONSES, MESSAGES, NATIVE, &[]] {
            let mut seen = HashSet::new();
            for parameter in COMMON.iter().chain(table) {
                assert!(seen.insert(parameter.name), "{} twice", parameter.name);
                match parameter.rule {
                    Rule::Harmless => {}
                    Rule::Refused(why) => assert!(!why.is_empty(), "{}", parameter.name),
                    Rule::Only(values, why) => {
                        assert!(!why.is_empty() && !values.is_empty(), "{}", parameter.name);
                        for value in values {
                            assert!(serde_json::from_str::<serde_json::Value>(value).is_ok(), "{value}");
                        }
                    }
                }
            }
        }
    }
}
