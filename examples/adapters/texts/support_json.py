"""Support messages and their JSON tickets: category, priority, one-line summary."""

from __future__ import annotations

import json
import random
from typing import NamedTuple

from texts.example import Example

KEYS = ("category", "priority", "summary")
CATEGORIES = ("billing", "shipping", "returns", "account", "technical", "product")
PRIORITIES = ("low", "normal", "high", "urgent")


class Issue(NamedTuple):
    """A reason to write to support: `messages` are phrasings, slots stand in braces."""

    category: str
    priority: str
    summary: str
    messages: tuple[str, ...]


ISSUES = (
    Issue(
        "billing",
        "high",
        "Charged twice for order {order}",
        (
            "I was charged twice for order {order}.",
            "You took the money for order {order} two times.",
            "My card shows a duplicate payment for order {order}.",
        ),
    ),
    Issue(
        "billing",
        "normal",
        "Needs an invoice for order {order}",
        (
            "Could you send me an invoice for order {order}?",
            "I need a receipt for order {order} for my taxes.",
            "Where can I get the invoice of order {order}?",
        ),
    ),
    Issue(
        "billing",
        "high",
        "Unknown charge of {amount} dollars",
        (
            "There is a charge of {amount} dollars on my statement that I do not know.",
            "Why did you bill me {amount} dollars? I bought nothing.",
            "I see a payment of {amount} dollars to you and I never ordered anything.",
        ),
    ),
    Issue(
        "billing",
        "normal",
        "Discount code not applied to {product}",
        (
            "My discount code was not applied when I bought the {product}.",
            "The coupon did not work, I paid the full price for the {product}.",
        ),
    ),
    Issue(
        "billing",
        "normal",
        "Wants to cancel the subscription",
        (
            "Please cancel my subscription.",
            "How do I stop the monthly plan? I do not want to pay any more.",
            "I would like to end my membership before the next payment.",
        ),
    ),
    Issue(
        "billing",
        "high",
        "Payment fails at checkout",
        (
            "My credit card is declined every time I try to pay.",
            "The payment keeps failing at checkout and my card is fine.",
        ),
    ),
    Issue(
        "shipping",
        "normal",
        "Order {order} has not arrived",
        (
            "My order {order} has not arrived yet.",
            "Where is order {order}? It should have been here {days} days ago.",
            "I have waited {days} days for order {order} and nothing came.",
        ),
    ),
    Issue(
        "shipping",
        "high",
        "Order {order} marked delivered but missing",
        (
            "Tracking says order {order} was delivered but I have nothing.",
            "Order {order} is marked as delivered and there is no parcel at my door.",
        ),
    ),
    Issue(
        "shipping",
        "normal",
        "Change delivery address of order {order}",
        (
            "I moved house, please change the delivery address of order {order}.",
            "I typed the wrong street for order {order}. Can you send it elsewhere?",
        ),
    ),
    Issue(
        "shipping",
        "normal",
        "Tracking for the {product} does not update",
        (
            "The tracking of my {product} has not moved for {days} days.",
            "The tracking link for the {product} shows nothing new.",
        ),
    ),
    Issue(
        "shipping",
        "low",
        "Asks about delivery time to {country}",
        (
            "How long does delivery to {country} take?",
            "Do you ship to {country}, and how many days does it need?",
        ),
    ),
    Issue(
        "returns",
        "normal",
        "Wants to return the {product}",
        (
            "I want to send the {product} back.",
            "How can I return the {product}? I do not need it.",
            "The {product} is not what I expected and I would like to return it.",
        ),
    ),
    Issue(
        "returns",
        "high",
        "Refund for the {product} not received",
        (
            "I returned the {product} {days} days ago and still have no refund.",
            "Where is my refund for the {product}?",
            "You got the {product} back but never gave me my money.",
        ),
    ),
    Issue(
        "returns",
        "high",
        "The {product} arrived broken",
        (
            "The {product} arrived broken.",
            "My {product} came with a big crack in it.",
            "I opened the box and the {product} was damaged.",
        ),
    ),
    Issue(
        "returns",
        "normal",
        "Wrong size of {product} received",
        (
            "The {product} has the wrong size, can I exchange it?",
            "I got the {product} in the wrong size.",
        ),
    ),
    Issue(
        "returns",
        "normal",
        "Received the {product} by mistake",
        (
            "You sent me a {product} but I ordered something else.",
            "There was a {product} in the box instead of what I bought.",
        ),
    ),
    Issue(
        "account",
        "high",
        "Cannot log in",
        (
            "I cannot log in to my account.",
            "It says my password is wrong and I cannot sign in.",
            "My login does not work any more.",
        ),
    ),
    Issue(
        "account",
        "normal",
        "Password reset email does not arrive",
        (
            "The password reset email never arrives.",
            "I asked for a new password but got no email.",
        ),
    ),
    Issue(
        "account",
        "urgent",
        "Account may be hacked",
        (
            "I think someone hacked my account.",
            "There are orders in my account that I did not make, somebody else is using it.",
            "A stranger changed the email of my account.",
        ),
    ),
    Issue(
        "account",
        "low",
        "Wants to change the email address",
        (
            "How do I change the email address of my account?",
            "I have a new email address, please update it.",
        ),
    ),
    Issue(
        "account",
        "normal",
        "Wants the account deleted",
        (
            "Please delete my account and all my data.",
            "I want to close my account.",
        ),
    ),
    Issue(
        "technical",
        "high",
        "App crashes on the {device}",
        (
            "The app crashes on my {device}.",
            "Your app closes by itself every time I open it on my {device}.",
            "Since the update the app will not start on my {device}.",
        ),
    ),
    Issue(
        "technical",
        "normal",
        "Website is very slow",
        (
            "Your website is very slow today.",
            "Pages take a minute to load on your site.",
        ),
    ),
    Issue(
        "technical",
        "high",
        "Error {code} when opening the cart",
        (
            "I get error {code} when I open my cart.",
            "The cart page only shows error {code}.",
        ),
    ),
    Issue(
        "technical",
        "normal",
        "The {gadget} does not connect to the {device}",
        (
            "The {gadget} does not connect to my {device}.",
            "I cannot pair the {gadget} with my {device}.",
            "My {device} does not find the {gadget} any more.",
        ),
    ),
    Issue(
        "technical",
        "normal",
        "The {gadget} does not turn on",
        (
            "The {gadget} does not turn on.",
            "My {gadget} is dead, the button does nothing.",
            "My {gadget} stopped working after {days} days.",
        ),
    ),
    Issue(
        "product",
        "low",
        "Asks when the {product} is back in stock",
        (
            "When will the {product} be back in stock?",
            "The {product} is sold out. Will you get more?",
        ),
    ),
    Issue(
        "product",
        "low",
        "Asks about the warranty of the {product}",
        (
            "How long is the warranty on the {product}?",
            "Does the {product} come with a warranty?",
        ),
    ),
    Issue(
        "product",
        "low",
        "Asks for other colours of the {product}",
        (
            "Does the {product} come in {colour}?",
            "Do you have the {product} in {colour} too?",
        ),
    ),
    Issue(
        "product",
        "low",
        "Likes the {product}",
        (
            "I just want to say that I love the {product}.",
            "Thank you, the {product} is great!",
        ),
    ),
    Issue(
        "product",
        "low",
        "Asks if the {product} is waterproof",
        (
            "Is the {product} waterproof?",
            "Can I use the {product} in the rain?",
        ),
    ),
)

SLOTS: dict[str, tuple[str, ...]] = {
    "product": (
        "desk lamp", "backpack", "jacket", "office chair", "hammock", "tent",
        "water bottle", "raincoat", "bicycle helmet", "phone case", "sofa", "yoga mat",
        "bookshelf", "smart watch", "keyboard", "camera", "coffee machine", "speaker", "kettle",
    ),
    "gadget": (
        "blender", "headset", "coffee machine", "keyboard", "smart watch", "toaster", "speaker",
        "camera", "printer", "monitor", "vacuum cleaner", "microphone", "hair dryer", "router",
    ),
    "country": ("Norway", "Canada", "Spain", "Japan", "Brazil", "Ireland", "Kenya", "Poland"),
    "device": ("phone", "tablet", "laptop", "Android phone", "iPhone", "iPad", "computer", "TV"),
    "colour": ("red", "black", "green", "white", "blue", "yellow"),
    "code": ("404", "500", "502", "403", "503"),
}  # fmt: skip

OPENINGS = ("", "", "", "Hi, ", "Hello, ", "Hi there! ", "Hello team, ", "Good morning. ", "Hey, ")
CLOSINGS = (
    "",
    "",
    "",
    " Thanks.",
    " Please help.",
    " Thank you!",
    " Can you help?",
    " Regards, Sam",
)
URGENT = (
    " This is urgent!",
    " I need this solved today.",
    " Please answer right now, it is an emergency.",
    " I need an answer immediately.",
)
RELAXED = (
    " No hurry.",
    " There is no rush.",
    " Whenever you have time.",
    " It is not important.",
)


class HeldOut(NamedTuple):
    """A message that no training example contains, with labels set by hand."""

    question: str
    category: str
    priority: str


HELD_OUT = (
    HeldOut("Hi, order 58213 was billed two times on my Visa. Please fix it.", "billing", "high"),
    HeldOut("My parcel with order 90417 is a week late. Where is it?", "shipping", "normal"),
    HeldOut("The guitar I got from you was smashed in the box.", "returns", "high"),
    HeldOut("Somebody got into my account and ordered three laptops!", "account", "urgent"),
    HeldOut("Your app freezes whenever I open it on my Pixel.", "technical", "high"),
    HeldOut("Will the wool scarf be available again in winter?", "product", "low"),
    HeldOut("I can't sign in, the site rejects me. I need this solved today.", "account", "urgent"),
    HeldOut("I'd like to send the drone back. No hurry.", "returns", "low"),
    HeldOut("What is this payment of 63 dollars on my bank statement?", "billing", "high"),
    HeldOut("The mouse won't pair with my MacBook.", "technical", "normal"),
    HeldOut("Do you deliver to Iceland and how long would it take?", "shipping", "low"),
    HeldOut("Still no refund for the skateboard I sent back two weeks ago.", "returns", "high"),
)  # fmt: skip


def sample(rng: random.Random) -> Example:
    """One message and its ticket; the closing words may raise or lower the priority."""
    category = rng.choice(CATEGORIES)
    issue = rng.choice([each for each in ISSUES if each.category == category])
    slots = _slots(rng)
    priority, words = _urgency(rng, issue.priority)
    text = rng.choice(OPENINGS) + rng.choice(issue.messages).format(**slots)
    ticket = (category, priority, issue.summary.format(**slots))
    answer = json.dumps(dict(zip(KEYS, ticket, strict=True)))
    return Example(text + words + rng.choice(CLOSINGS), answer)


def _slots(rng: random.Random) -> dict[str, str]:
    drawn = {name: rng.choice(words) for name, words in SLOTS.items()}
    drawn["order"] = str(rng.randrange(1000, 99999))
    drawn["amount"] = str(rng.randrange(5, 400))
    drawn["days"] = str(rng.randrange(2, 30))
    return drawn


def _urgency(rng: random.Random, priority: str) -> tuple[str, str]:
    draw = rng.random()
    if draw < 0.18:
        return "urgent", rng.choice(URGENT)
    if draw < 0.32 and priority != "urgent":
        return "low", rng.choice(RELAXED)
    return priority, ""
