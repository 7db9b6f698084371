//! Prompts of several kinds: stories, chat, code, lists, other scripts, repetition, a single word.

/// Questions for the chat template, then plain text to continue.
pub const QUESTIONS: [&str; 20] = [
    "Tell me a story about a brave rabbit.",
    "Write a Python function to add two numbers.",
    "What is speculative decoding?",
    "Count to ten.",
    "Why is the sky blue?",
    "Write a haiku about rain.",
    "List three fruits and their colours.",
    "How do I reverse a string in Rust?",
    "Tell me a story about a shy dragon who likes tea.",
    "What is the capital of France?",
    "Explain recursion to a child.",
    "Write a letter to a friend who moved away.",
    "Give me a recipe for pancakes.",
    "What does a cache do?",
    "Wie heißt du?",
    "Who wrote the play about two lovers in Verona?",
    "Repeat the word \"tick\" eight times.",
    "Summarise: the dog ran after the cat, and the cat ran up a tree.",
    "Is 17 a prime number?",
    "Hello!",
];

/// Beginnings of texts.
pub const TEXTS: [&str; 22] = [
    "Once upon a time, there was a kind bear named Otto.",
    "The captain of the ship looked at the sea and",
    "use std::collections::HashMap;\n\nimpl ",
    "import os\nimport sys\n\n\nclass Config:\n    def __init__(self, path):\n       ",
    "1, 2, 3, 4, 5, 6,",
    "the the the the the the",
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return",
    "# Notes\n\n- first\n- second\n-",
    "In the beginning",
    "{\"name\": \"Nora\", \"age\": 7, \"pets\": [\"fox\",",
    "It was a dark and stormy night; the rain fell in torrents, except at occasional intervals,",
    "a b c d e f g h i j k",
    "for (int i = 0; i < n; i++) {\n",
    "Dear Sir or Madam,\n\nI am writing to",
    "Q: What is two plus two?\nA: Four.\nQ: What is three plus three?\nA:",
    "SELECT name, age FROM people WHERE",
    "Zwei Dinge erfüllen das Gemüt mit immer neuer",
    "🙂🙂🙂",
    "x",
    "Nora found a small seed. Yusuf the elephant said, \"Plant it and see.\" Nora put the seed in the soft earth and covered it. \
     Every morning Nora ran to look, but there was only brown earth. It rained, and the sun shone. Nora found a small seed.",
    "fn main() {\n    let mut total = 0;\n    for x in 0..10 {\n        total +=",
    "To be, or not to be, that is the",
];
