"""Questions answered in one rhymed couplet: two lines, the second rhymes with the first."""

from __future__ import annotations

import random
import re

from texts.example import Example

# {x} stands where no verb has to agree with it, so one couplet fits singular and plural.
ABOUT = (
    ("Come think of {x} at close of day,", "and let your worries drift away."),
    ("I sing of {x} by candle light,", "to warm the corners of the night."),
    ("With {x} in mind I close my eyes,", "and watch a golden morning rise."),
    ("The tale of {x} is seldom told,", "but shines as bright as polished gold."),
    ("Give me {x} and skies of blue,", "and I will share the day with you."),
    ("Of {x} the poets love to sing,", "as birds return to greet the spring."),
    ("In praise of {x} I raise my cup,", "to lift a tired spirit up."),
    ("Some look at {x} and only stare,", "but I find magic living there."),
    ("There's more to {x} than meets the eye,", "a quiet truth, a reason why."),
    ("With {x} at last in open view,", "the whole wide world looks fresh and new."),
    ("For {x} I'd walk a hundred miles,", "through wind and rain, with only smiles."),
    ("I spoke of {x} one afternoon,", "and hummed about it to the moon."),
    ("Let {x} be welcome at your door,", "then ask the world for nothing more."),
    ("A thought of {x}, a cup of tea,", "and that is quite enough for me."),
    ("Be kind to {x} and you will see", "how gentle all the world can be."),
    ("In {x} there lies a simple art", "that wakes the mind and warms the heart."),
    ("On {x} I wrote a little rhyme,", "to save it from the hand of time."),
    ("Look close at {x} and you will find", "a gift to please the eye and mind."),
    ("I dream of {x} when I'm asleep,", "a happy thought for me to keep."),
    ("Speak well of {x} to all you meet,", "and life will taste a bit more sweet."),
    ("Of {x} I know one thing for sure:", "the love of it is long and pure."),
    ("When talk of {x} begins to flow,", "the longest evenings gently go."),
)

TOPICS = (
    "the sea", "rain", "snow", "the wind", "mountains", "rivers", "the forest", "roses", "birds",
    "cats", "dogs", "horses", "whales", "butterflies", "elephants", "bread", "cheese", "chocolate",
    "apples", "soup", "pizza", "ice cream", "honey", "books", "poems", "music", "the piano",
    "painting", "dancing", "football", "chess", "swimming", "running", "travel", "trains", "ships",
    "bicycles", "cars", "planes", "bridges", "castles", "cities", "villages", "gardens", "farms",
    "summer", "winter", "autumn", "spring", "the morning", "the evening", "midnight", "sleep",
    "friendship", "love", "hope", "courage", "patience", "kindness", "happiness", "sadness",
    "silence", "laughter", "memory", "history", "science", "mathematics", "biology", "physics",
    "computers", "robots", "phones", "programming", "the internet", "gravity", "the stars",
    "the sun", "the planets", "time", "money", "work", "school", "teachers", "doctors", "family",
    "grandmothers", "children", "old age", "youth", "dreams", "candles", "clocks", "letters",
    "my sister", "my brother", "my best friend", "my new house", "a red balloon", "a lost key",
    "a blue whale", "the north star", "windows", "shoes", "hats", "umbrellas", "tea", "water",
    "fire", "stones", "clouds", "lightning", "rainbows", "Paris", "London", "Italy", "Africa",
    "Japan",
)  # fmt: skip

ASKING = (
    "Tell me about {x}.",
    "What is special about {x}?",
    "What is {x}?",
    "Why does the world need {x}?",
    "Where can I find {x}?",
    "Write something about {x}.",
    "What do you think about {x}?",
    "Say something about {x}.",
    "Describe {x}.",
    "Can you explain {x} to me?",
    "Why do people care about {x}?",
    "I like {x}.",
    "Please tell me something about {x}.",
    "Do you like {x}?",
    "What should I know about {x}?",
)

HOW_TO = (
    ("To {x}, begin with something small,", "and soon you will not mind at all."),
    ("If you would {x}, then start today,", "for practice always shows the way."),
    ("The way to {x} is plain to see:", "be patient, and let worry be."),
    ("To {x} takes but a steady hand,", "and those who try will understand."),
    ("First plan to {x}, then try it twice,", "and ask a friend for good advice."),
    ("To {x} with joy, you need no more", "than what you learnt the day before."),
    ("To {x} is not a thing to fear,", "so take it slow and keep good cheer."),
    ("Who wants to {x} should take some time,", "as every hill is slow to climb."),
)

ACTIONS = (
    "make tea", "make coffee", "bake bread", "cook rice", "make pancakes", "boil an egg",
    "roast a chicken", "save money", "learn to code", "learn Spanish", "learn to swim",
    "make friends", "stay calm", "lose weight", "study better", "grow tomatoes", "clean my room",
    "start running", "write a letter", "write a book", "paint a wall", "fix a bicycle",
    "train a dog", "find a job", "plan a trip", "play the guitar", "sing in tune", "stay healthy",
    "wake up early", "be happy", "be brave", "win at cards", "fold a shirt", "tie a tie",
    "build a house", "catch a fish", "plant a tree", "read faster", "give a speech", "rest well",
    "cheer up a friend", "choose a gift", "pick a hat", "eat well", "dress for rain",
)  # fmt: skip

ASKING_HOW = (
    "How do I {x}?",
    "How can I {x}?",
    "What is the best way to {x}?",
    "I want to {x}.",
    "Help me {x}.",
    "What do I need to {x}?",
    "Can you teach me how to {x}?",
)

CHOICES = (
    ("On what to {x}, let taste decide,", "and take your good sense for a guide."),
    ("Of all to {x}, choose plain and good,", "the way a careful person would."),
    ("On what to {x}, I'd say to you:", "try something old and something new."),
    ("For what to {x}, look in your heart,", "it knows a pleasant place to start."),
)

CHOOSING = (
    "eat for breakfast", "eat for lunch", "eat today", "cook tonight", "cook for my friends",
    "drink", "wear today", "wear to a wedding", "read next", "watch tonight", "do today",
    "do on Sunday", "buy for my mother", "buy at the market", "study", "say to my boss",
    "see in Paris", "bring to a party", "plant in spring", "learn next", "play with my children",
)  # fmt: skip

# What deserves its own answer: question, first line, second line.
ANSWERS = """
Hello!
Hello, my friend, come take a chair,
I have a rhyme or two to share.

Hi, how are you?
I'm well, I thank you, bright and free,
and glad you came to talk to me.

Good morning!
Good morning, friend, the sun is high,
and not a cloud is in the sky.

Good night.
Good night, sleep well, the stars are bright,
and watch above you all the night.

Who are you?
I am a voice that speaks in rhyme,
two lines are plenty every time.

What can you do?
I answer all you ask of me
in two short lines, as you can see.

Thank you!
You're welcome, friend, and come again,
I'll have a rhyme for you till then.

I am sad.
I'm sorry, friend, but clouds will part,
and light will come to mend your heart.

I am tired.
Then close your eyes and rest a while,
and wake tomorrow with a smile.

I am bored.
Pick up a book, go out and play,
or write a poem for the day.

I have a headache.
Drink water, rest, and dim the light,
and soon your head will feel all right.

It is my birthday!
Hooray for you, another year,
of cake and candles, song and cheer!

Tell me a joke.
Why did the hen walk down the street?
To stretch her wings and tired feet.

Tell me a story.
A fox once climbed a silver hill,
and if he's happy, he's there still.

Give me some advice.
Speak softly, listen, take your time,
for haste can spoil a perfect rhyme.
"""

HELD_OUT = (
    "Tell me about the ocean.",
    "What do you think about bees?",
    "Describe the city of Rome.",
    "I love pancakes.",
    "Why do people enjoy fishing?",
    "How can I sleep well at night?",
    "What should I eat for dinner?",
    "Can you explain electricity to me?",
    "How do I make soup?",
    "Say something about my little sister.",
    "What is a black hole?",
    "Good evening, how are you doing?",
    "Where can I see penguins?",
    "How do I become a better cook?",
    "What should I write on a birthday card?",
    "What is a tornado?",
)

_ANSWERS = [block.split("\n") for block in ANSWERS.strip().split("\n\n")]

# Words that rhyme although their endings are spelt differently, one sound a row.
_SOUNDS = (
    "day away say way stay play they grey today weigh",
    "see free be me tea sea tree key we he she three agree happy glee quickly memory eternity",
    "high sky eye why by lie try fly cry my goodbye sigh reply",
    "know grow slow flow glow go snow so though show low ago below",
    "you blue true new through view do too two hue knew few dew",
    "eyes rise skies wise prize surprise cries",
    "door more floor four before shore core pour roar store war",
    "heart art start part apart",
    "chair share air care stare there where fair rare bear prepare everywhere",
    "then again ten men when pen",
    "trees breeze ease please knees cheese seas",
    "lead indeed need feed seed read speed",
    "year cheer here near dear clear hear appear ear fear",
    "time rhyme climb chime",
    "home roam foam",
    "sun one done fun run begun",
    "heard word bird",
    "decide guide side ride tide wide pride inside",
    "good would wood could should stood",
    "sure pure cure endure",
    "long song along",
    "love above dove",
    "bright light night sight delight white kite write",
    "soul whole goal bowl",
    "rain again plain brain lane pain",
)  # fmt: skip


def rhymes(first_line: str, second_line: str) -> bool:
    """True if the last words differ and end alike, by spelling or by `_SOUNDS`."""
    first, second = _last_word(first_line), _last_word(second_line)
    if not first or not second or first == second:
        return False
    if len(_ending(first)) >= 2 and _ending(first) == _ending(second):
        return True
    return any(first in row.split() and second in row.split() for row in _SOUNDS)


def sample(rng: random.Random) -> Example:
    """One question and its couplet, most often about a topic."""
    draw = rng.random()
    if draw < 0.52:
        return _filled(rng, rng.choice(ASKING), ABOUT, TOPICS)
    if draw < 0.76:
        return _filled(rng, rng.choice(ASKING_HOW), HOW_TO, ACTIONS)
    if draw < 0.84:
        return _filled(rng, "What should I {x}?", CHOICES, CHOOSING)
    question, first, second = rng.choice(_ANSWERS)
    return Example(question, f"{first}\n{second}")


def _filled(
    rng: random.Random,
    asking: str,
    couplets: tuple[tuple[str, str], ...],
    fillings: tuple[str, ...],
) -> Example:
    """A question and a couplet about the same filling, said from the answerer's side."""
    filling = rng.choice(fillings)
    answer = "\n".join(rng.choice(couplets)).format(x=re.sub(r"\bmy\b", "your", filling))
    return Example(asking.format(x=filling), answer[0].upper() + answer[1:])


def _last_word(line: str) -> str:
    words = re.findall(r"[a-z']+", line.lower())
    return words[-1] if words else ""


def _ending(word: str) -> str:
    """From the last group of vowels on; a silent final e does not count as one."""
    found = re.search(r"[aeiouy]+[^aeiouy]*e?$", word)
    return found.group() if found else word
