"""Templated chats with tool calls in Qwen's XML form (own work)."""

import json

CITIES = ("Paris Rome Oslo Lima Cairo Tokyo Berlin Madrid Dublin Vienna Lagos Quito Boston Sydney Mumbai Seoul Athens Lisbon Prague "
          "Warsaw Denver Nairobi Toronto Chicago Munich Porto Geneva Kyoto Malta Delhi").split()
NAMES = ("Anna Ben Carla David Emma Frank Grace Henry Iris Jack Kate Leo Mia Noah Olga Paul Quinn Rosa Sam Tina Uma Victor Wendy Yara "
         "Zoe").split()
ITEMS = "milk bread apples eggs rice tea coffee sugar flour butter cheese pasta soap paper batteries".split()
TOPICS = ("the moon|rust ownership|the history of bread|how trees grow|the speed of light|sea turtles|python lists|old maps|"
          "the water cycle|volcanoes|sqlite indexes|bicycle repair").split("|")
PHRASES = "hello|good morning|thank you|the train is late|where is the library|i like tea|see you tomorrow".split("|")
LANGUAGES = "French German Spanish Italian Japanese Polish".split()
SKIES = "sunny cloudy rainy windy clear".split()
FILES = ["notes", "todo", "readme", "main", "lib", "config", "data", "list"]
ENDINGS = [".txt", ".md", ".rs", ".py", ".json"]


# Each tool is used by a function that draws `(question, arguments, result, answer)`.


def get_weather(r):
    city, degrees, sky = r.choice(CITIES), r.randint(-9, 38), r.choice(SKIES)
    question = r.choice(["What is the weather in %s?", "How is the weather in %s today?", "Is it warm in %s?",
                         "Tell me the weather in %s."]) % city
    answer = r.choice([f"It is {degrees} degrees and {sky} in {city}.", f"In {city} it is {sky}, {degrees} degrees."])
    return question, dict(city=city), dict(city=city, temperature=degrees, sky=sky), answer


def get_time(r):
    city, time = r.choice(CITIES), "%02d:%02d" % (r.randint(0, 23), r.randint(0, 59))
    question = r.choice(["What time is it in %s?", "Tell me the time in %s."]) % city
    return question, dict(city=city), dict(time=time), f"It is {time} in {city}."


def add(r):
    a, b = r.randint(10, 9999), r.randint(10, 9999)
    question = r.choice(["Please add %d and %d.", "What is %d plus %d?", "Use the tool to add %d and %d."]) % (a, b)
    return question, dict(a=a, b=b), dict(result=a + b), f"{a} + {b} = {a + b}"


def multiply(r):
    a, b = r.randint(10, 999), r.randint(10, 999)
    question = r.choice(["Multiply %d by %d.", "What is %d times %d?"]) % (a, b)
    return question, dict(a=a, b=b), dict(result=a * b), f"{a} times {b} is {a * b}."


def search(r):
    topic = r.choice(TOPICS)
    question = r.choice(["Search for %s.", "Find something about %s.", "Look up %s on the web."]) % topic
    return question, dict(query=topic), dict(results=["A page about " + topic]), f"I found a page about {topic}."


def set_timer(r):
    minutes = r.randint(2, 90)
    question = r.choice(["Set a timer for %d minutes.", "Start a %d minute timer.", "Wake me in %d minutes."]) % minutes
    return question, dict(minutes=minutes), dict(ok=True), f"The timer is set for {minutes} minutes."


def send_message(r):
    name, phrase = r.choice(NAMES), r.choice(PHRASES)
    question = r.choice(['Send "%s" to %s.', 'Write the message "%s" to %s.']) % (phrase, name)
    return question, dict(to=name, text=phrase), dict(sent=True), f"I sent your message to {name}."


def read_file(r):
    path = r.choice(FILES) + r.choice(ENDINGS)
    question = r.choice(["Read the file %s.", "What is in %s?", "Open %s and show it."]) % path
    return question, dict(path=path), dict(text="a short note"), f"The file {path} holds a short note."


def add_to_list(r):
    item, count = r.choice(ITEMS), r.randint(1, 12)
    question = r.choice(["Put %d %s on my shopping list.", "Add %d %s to the list.", "I need %d %s, write it down."]) % (count, item)
    return question, dict(item=item, count=count), dict(ok=True), f"I put {count} {item} on your list."


def translate(r):
    phrase, language = r.choice(PHRASES), r.choice(LANGUAGES)
    question = r.choice(['Translate "%s" into %s.', 'How do I say "%s" in %s?']) % (phrase, language)
    return question, dict(text=phrase, language=language), dict(done=True), f'The tool translated "{phrase}" into {language}.'


TOOLS = {  # name: (maker, description, types of the parameters)
    "get_weather": (get_weather, "Get the current weather of a city.", dict(city="string")),
    "get_time": (get_time, "Get the local time of a city.", dict(city="string")),
    "add": (add, "Add two numbers.", dict(a="number", b="number")),
    "multiply": (multiply, "Multiply two numbers.", dict(a="number", b="number")),
    "search": (search, "Search the web.", dict(query="string")),
    "set_timer": (set_timer, "Start a timer.", dict(minutes="integer")),
    "send_message": (send_message, "Send a text message to a person.", dict(to="string", text="string")),
    "read_file": (read_file, "Read a text file.", dict(path="string")),
    "add_to_list": (add_to_list, "Put an item on the shopping list.", dict(item="string", count="integer")),
    "translate": (translate, "Translate a text.", dict(text="string", language="string")),
}


def schema(name):
    """The tool as the template prints it."""
    _, description, types = TOOLS[name]
    properties = {parameter: {"type": kind} for parameter, kind in types.items()}
    parameters = {"type": "object", "properties": properties, "required": list(types)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


def system_block(names):
    """The system message that offers tools."""
    return ("# Tools\n\nYou may call these functions:\n\n<tools>" + "".join("\n" + json.dumps(schema(name)) for name in names)
            + "\n</tools>\n\nCall a function like this:\n\n<tool_call>\n<function=name>\n<parameter=argument>\nvalue\n</parameter>\n"
            "</function>\n</tool_call>")


def call(name, arguments):
    """A tool call as the model writes it."""
    lines = [f"<parameter={key}>\n{value if isinstance(value, str) else json.dumps(value)}\n</parameter>\n"
             for key, value in arguments.items()]
    return f"<tool_call>\n<function={name}>\n{''.join(lines)}</function>\n</tool_call>"


def response(content):
    """A tool's result, which is a user turn of its own."""
    return f"<tool_response>\n{content}\n</tool_response>"


def sample(r):
    """One chat: a list of `(role, content)`."""
    names = r.sample(list(TOOLS), r.randint(1, 4))
    used = r.choice(names)
    question, arguments, result, answer = TOOLS[used][0](r)
    system = system_block(names) + r.choice(["", "", "\n\nYou are a helpful assistant.", "\n\nBe brief."])
    messages, shape = [("system", system)], r.random()
    if shape < 0.12:
        messages += [("user", r.choice(["Hello!", "Hi there.", "Good morning."])),
                     ("assistant", r.choice(["Hello! How can I help you?", "Hi! What can I do for you?"]))]
        if r.random() < 0.3:
            return messages
    messages += [("user", question), ("assistant", call(used, arguments))]
    if shape < 0.75:
        messages += [("user", response(json.dumps(result))), ("assistant", answer)]
    return messages
