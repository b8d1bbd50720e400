"""The words of the names that Prefect's form proposes for runs, such as `Sleek-Zebra`: an adjective and an animal.

They are in the JavaScript of Prefect's pages only. A test compares them with the pages of the installed Prefect.
"""

ADJECTIVES = frozenset({
    "Awesome", "Rustic", "Small", "Gorgeous", "Fantastic", "Sleek", "Intelligent", "Unbranded", "Refined", "Licensed",
    "Generic", "Practical", "Ergonomic", "Handcrafted", "Tasty", "Handmade", "Incredible",
})  # fmt: skip
OF_SIX_LETTERS = """
Addax Aidi Ainu Akbash Akita Alabai Alpaca Alusky Ant Ape Asp Avocet Baboon Badger Baiji Barb Barbet Bass Bat Baya
Beagle Beago Bear Beaski Beaver Bee Beetle Bichir Bilby Bird Birman Bison Boas Bobcat Boggle Boiga Bombay Bongo
Bonobo Booby Borkie Bowfin Boxsky Briard Brug Caiman Camel Cantil Carp Cat Chipit Chipoo Chiton Chusky Cicada Coati
Cobras Cockle Collie Conure Coral Corkie Cougar Cow Coyote Crab Crane Crow Cuckoo Cuscus Daniff Danios Daug Deer
Dhole Dingo Discus Dodo Dog Donkey Dorgi Dorkie Douc Doxle Drever Duck Dugong Dunker Eagle Earwig Eel Egret Eider
Eland Elk Emu Ermine Eryops Falcon Feist Ferret Fish Flea Fly Fossa Fox Frog Frug Gar Gecko Genet Gerbil Gibbon Gnat
Goat Gollie Goose Gopher Grebe Grouse Guppy Hare Hawk Heron Hoopoe Horgi Hornet Horse Human Husky Hyena Ibex Ibis
Iguana Impala Indri Insect Jabiru Jacana Jackal Jaguar Jerboa Kagu Kakapo Kea Keagle Kishu Kiwi Koala Kodkod Koolie
Kowari Krait Krill Kudu Kuvasz Leech Lemur Liger Limpet Linnet Lion Lizard Llama Loach Locust Loris Lynx Macaw
Maggot Magpie Malchi Mamba Marmot Mauzer Mayfly Meagle Miki Mink Mole Molly Monkey Moose Morkie Moth Mouse Mudi Mule
Muskox Newt Nilgai Numbat Nutria Nyala Ocelot Okapi Olingo Olm Onager Opah Oribi Osprey Otter Owl Ox Oyster Parrot
Peagle Pig Pigeon Pika Pitsky Pomchi Pomsky Poodle Poogle Possum Potoo Prawn Puffin Pug Puggle Puli Puma Pumi Python
Quagga Quail Quokka Quoll Rabbit Raggle Rat Rhea Robin Sable Saiga Salmon Saluki Sambar Saola Seal Serval Shark
Sheep Shichi Shrew Shrimp Skua Skunk Sloth Slug Snail Snake Somali Sphynx Spider Sponge Squid Stoat Stork Swan
Taipan Takin Tang Tapir Tarpon Tetra Thrush Tick Tiger Torkie Tosa Toucan Towhee Trout Tuna Turaco Turkey Uakari
Uguisu Unau Urial Vicuña Viper Vizsla Vole Walrus Wasp Weasel Wolf Wombat Worm Wrasse Xeme Xerus Yak Yarara Zebra
Zebu Zokor Zonkey Zorse Zuchon
"""
ANIMALS = frozenset(name.replace("_", " ") for name in OF_SIX_LETTERS.split())
"""Animals with at most six letters, as the form requests them."""


def proposed_by_form(name: str) -> bool:
    """Return whether a name is one that the form proposes."""
    adjective, _, animal = name.partition("-")
    return adjective in ADJECTIVES and animal in ANIMALS
