"""The page of state diagrams agrees with the state tables."""

from tests.support.state_diagrams import PAGE, page


def test_the_page_of_states_is_up_to_date() -> None:
    assert PAGE.read_text() == page(), "run: python -m tests.support.state_diagrams"
