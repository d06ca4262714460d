"""Stands in for the drafts that SGLang takes from a corpus of n-grams."""


class NgramVerifyInput:
    def __init__(
        self,
        draft_token=None,
        custom_mask=None,
        positions=None,
        retrieve_index=None,
        retrieve_next_token=None,
        retrieve_next_sibling=None,
        draft_token_num=None,
    ):
        self.draft_token, self.custom_mask, self.positions = draft_token, custom_mask, positions
        self.retrieve_index, self.retrieve_next_token = retrieve_index, retrieve_next_token
        self.retrieve_next_sibling, self.draft_token_num = retrieve_next_sibling, draft_token_num

    @property
    def max_tree_depth(self):
        return self.draft_token_num

    @property
    def tree_topk(self):
        return -1
