"""The class names of CIFAR-10 and CIFAR-100, in the order of their labels."""
# ruff: noqa: SIM905 (a list would be one word a line)

from __future__ import annotations

CIFAR10_NAMES = tuple("airplane automobile bird cat deer dog frog horse ship truck".split())

CIFAR100_NAMES = tuple(
    """
    apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus
    butterfly camel can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch
    crab crocodile cup dinosaur dolphin elephant flatfish forest fox girl hamster house kangaroo
    keyboard lamp lawn_mower leopard lion lizard lobster man maple motorcycle mountain mouse
    mushroom oak orange orchid otter palm pear pickup_truck pine plain plate poppy porcupine
    possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake
    spider squirrel streetcar sunflower sweet_pepper table tank telephone television tiger
    tractor train trout tulip turtle wardrobe whale willow wolf woman worm
    """.split()
)

CIFAR100_COARSE_NAMES = tuple(
    """
    aquatic_mammals fish flowers food_containers fruit_and_vegetables
    household_electrical_devices household_furniture insects large_carnivores
    large_man-made_outdoor_things large_natural_outdoor_scenes large_omnivores_and_herbivores
    medium_mammals non-insect_invertebrates people reptiles small_mammals trees vehicles_1
    vehicles_2
    """.split()
)
