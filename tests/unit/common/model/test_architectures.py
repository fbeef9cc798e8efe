"""Greedy text equals `transformers` generate, token for token, for every architecture."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.models.gemma3n import modeling_gemma3n as gemma3n

from common.errors import ModelError
from common.model import kernels
from common.model.hf import model as hf_model
from common.model.loader import load
from common.model.runner import Runner
from tests import tiny_models
from tests.inprocess import Pair, runner
from tests.tiny_models import ARCHITECTURES, VOCAB

PROMPT_LENGTHS = (1, 63, 300)
NEW_TOKENS = 9


def _prompt(length: int) -> list[int]:
    generator = torch.Generator().manual_seed(length)
    return torch.randint(3, VOCAB, (length,), generator=generator).tolist()


def _reference(model: PreTrainedModel, prompt: list[int]) -> list[int]:
    out = model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
        max_new_tokens=NEW_TOKENS,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )
    return out[0, len(prompt) :].tolist()


def _check_text(config: PreTrainedConfig, directory: Path) -> None:
    """Writes a model of this kind, whose text is to be that of `transformers`."""
    AutoModelForCausalLM.from_config(config).save_pretrained(directory)
    reference = AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.float32, attn_implementation="eager"
    )
    text = Pair.make(runner(directory)).generate(_prompt(63), NEW_TOKENS)
    assert text == _reference(reference, _prompt(63))


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Runner:
    """A drafter that knows nothing about the targets."""
    directory = tiny_models.save("llama", tmp_path_factory.mktemp("stranger"), seed=9)
    return runner(directory, "bfloat16")


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_greedy_text_equals_transformers(kind: str, tmp_path: Path, stranger: Runner) -> None:
    directory = tiny_models.save(kind, tmp_path)
    # Eager: older transformers take a kernel by default that leaves soft-capping out.
    reference = AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.float32, attn_implementation="eager"
    )
    target = runner(directory)
    plain, helped, misled = (Pair.make(target, draft) for draft in (None, target, stranger))
    for length, drafted in zip(PROMPT_LENGTHS, (helped, misled, helped), strict=True):
        prompt = _prompt(length)
        expected = _reference(reference, prompt)
        assert plain.generate(prompt, NEW_TOKENS) == expected
        assert drafted.generate(prompt, NEW_TOKENS, draft_tokens=4) == expected
    target.pool.blocks.check()
    assert target.pool.blocks.held == 0


def test_weights_matter(tmp_path: Path) -> None:
    """The comparison above would notice another model: its texts are not all alike."""
    texts = {
        tuple(
            Pair.make(runner(tiny_models.save("llama", tmp_path / str(s), seed=s))).generate(
                _prompt(20), NEW_TOKENS
            )
        )
        for s in range(3)
    }
    assert len(texts) == 3
    assert all(len(set(text)) > 3 for text in texts)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("bloom", "AttentionInterface"),
        ("falcon", "AttentionInterface"),
        ("mpt", "AttentionInterface"),
        ("mamba", "recurrent state"),
        ("t5", "not a causal language model"),
        ("paligemma", "reads pictures; .* the text is served where .* and of internvl, llava, "),
    ],
)
def test_unsupported_architectures_are_refused_by_name(
    kind: str, reason: str, tmp_path: Path
) -> None:
    AutoConfig.for_model(kind).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=reason) as caught:
        load(str(tmp_path), device="cpu")
    assert kind in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "setting", "served"),
    [
        ("gemma3_text", {"use_bidirectional_attention": True}, False),
        ("bert", {"is_decoder": False}, False),
        ("bert", {"is_decoder": True}, True),
    ],
)
def test_models_whose_tokens_see_later_ones_are_refused(
    kind: str, setting: dict[str, Any], served: bool, tmp_path: Path
) -> None:
    sizes = {**ARCHITECTURES.get(kind, ARCHITECTURES["llama"]), **setting}
    config = AutoConfig.for_model(kind, **sizes)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    with nullcontext() if served else pytest.raises(ModelError, match="see those after them"):
        load(str(tmp_path), device="cpu")


def test_models_that_compute_with_their_masks_are_refused(tmp_path: Path) -> None:
    config = AutoConfig.for_model("doge", **ARCHITECTURES["llama"])
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=r"cannot be served .* mask; tokens must see all before"):
        runner(tmp_path)


def test_other_weights_in_a_folder_below_are_another_model(tmp_path: Path) -> None:
    models = [tiny_models.save("llama", tmp_path / str(seed), seed=seed) for seed in range(2)]
    first, second = (load(str(tiny_models.split(each, "parts/a.safetensors"))) for each in models)
    assert first.fingerprint != second.fingerprint


@pytest.mark.parametrize(("kind", "matter"), [("llama", False), ("gpt2", True)])
def test_threads_make_another_model_where_torch_computes(
    kind: str, matter: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = str(tiny_models.save(kind, tmp_path))
    prints = set()
    for threads in (1, 2):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        loaded = load(directory, device="cpu")
        prints.add(loaded.fingerprint)
    if not matter and not loaded.kernels.startswith("native"):
        pytest.skip("no compiler or no AVX2 here")
    assert len(prints) == 1 + matter


@pytest.mark.parametrize("shared", [0, 3], ids=["all keys", "shared keys"])
def test_pictures_are_seen_by_attention_of_their_own(shared: int, tmp_path: Path) -> None:
    """Whose layers count for none of the text's, whatever they are called."""
    ends = {} if shared else {"attention_k_eq_v": True, "num_global_key_value_heads": 1}
    config = AutoConfig.for_model(
        "gemma4",
        text_config={
            **ARCHITECTURES["gemma3_text"],
            "global_head_dim": 32,
            "num_hidden_layers": 6,
            "layer_types": (["sliding_attention"] * 2 + ["full_attention"]) * 2,
            "num_kv_shared_layers": shared,
            "vocab_size_per_layer_input": VOCAB,
            "hidden_size_per_layer_input": 8 if shared else 0,
            **ends,
        },
        vision_config={**ARCHITECTURES["gemma3"]["vision_config"], "head_dim": 16},
        audio_config=None,
        **dict(
            zip(
                ("image_token_id", "video_token_id", "audio_token_id"), _prompt(63)[:3], strict=True
            )
        ),
    )
    _check_text(config, tmp_path)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("mistral3", {}),
        ("mistral3", {"model_type": "ministral3"}),
        ("qwen2_5_vl", {}),
        ("qwen3_vl_moe", {}),
    ],
)
def test_text_alone_is_served_of_models_that_see_pictures(
    kind: str, text: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What pictures go through is not kept; by torch here, as kernels know no pictures anyway."""
    monkeypatch.setattr(kernels, "can_run", lambda model: False)
    monkeypatch.setattr(kernels, "_fused", lambda model, context, quantize: None)
    text = {**tiny_models.MORE[kind]["text_config"], **text}
    directory = tiny_models.save(kind, tmp_path, text_config=text)
    reference = AutoModelForImageTextToText.from_pretrained(directory, dtype=torch.float32)
    target = runner(directory)
    assert Pair.make(target).generate(_prompt(63), NEW_TOKENS) == _reference(reference, _prompt(63))
    parts = (reference.model.language_model, reference.lm_head)
    assert target.loaded.parameters == sum(
        weight.numel() for part in parts for weight in part.parameters()
    )


def test_what_text_goes_through_beside_its_reader_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gemma 3n asks the embeddings of pictures and sound which ids are theirs."""
    made = gemma3n.AutoModel.from_config

    def without_tower(config: Any, **options: Any) -> Any:  # that is another library's
        seeing = "Vision" in type(config).__name__
        return torch.nn.Linear(2, 2) if seeing else made(config, **options)

    monkeypatch.setattr(gemma3n.AutoModel, "from_config", without_tower)
    config = AutoConfig.for_model(
        "gemma3n",
        text_config={
            **ARCHITECTURES["gemma3_text"],
            "layer_types": (["sliding_attention"] * 2 + ["full_attention"]) * 2,
            "num_hidden_layers": 6,
            "num_kv_shared_layers": 2,
            "vocab_size_per_layer_input": VOCAB,
            "hidden_size_per_layer_input": 8,
            "altup_num_inputs": 2,
            "laurel_rank": 4,
            "activation_sparsity_pattern": [0.0] * 6,
        },
        vision_config={"hidden_size": 32, "vocab_size": 10, "vocab_offset": VOCAB - 20},
        audio_config={
            "hidden_size": 32,
            "vocab_size": 10,
            "vocab_offset": VOCAB - 10,
            "conf_num_hidden_layers": 1,
            "conf_num_attention_heads": 2,
            "input_feat_size": 16,
            "sscp_conv_channel_size": [4, 4],
        },
    )
    _check_text(config, tmp_path)


@pytest.mark.parametrize(
    ("beta", "step"), [(None, 8), ("much", 8), (0.1, None), (0.1, 0), (0.1, 8.5)]
)
def test_queries_that_grow_in_an_unknown_way_are_refused(
    beta: Any, step: Any, tmp_path: Path
) -> None:
    directory = tiny_models.save("ministral3", tmp_path)
    file = directory / "config.json"
    said = json.loads(file.read_text())
    said["rope_parameters"] = {
        "rope_type": "default",
        "rope_theta": 1e4,
        "llama_4_scaling_beta": beta,
        "original_max_position_embeddings": step,
    }
    file.write_text(json.dumps(said))
    with pytest.raises(ModelError, match=r"rope_parameters|config\.json cannot be used"):
        load(str(directory), device="cpu")


def test_what_transformers_fails_at_is_refused_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise AttributeError("'Linear' object has no attribute 'weight'\nsomewhere")

    monkeypatch.setattr(hf_model, "replace_linears", fail)
    directory = str(tiny_models.save("gpt2", tmp_path))
    with pytest.raises(ModelError, match=r"served: AttributeError: .* no attribute 'weight'$"):
        load(directory, device="cpu")


class TestBadDirectories:
    @pytest.mark.parametrize("groups", [0, 3, 8])
    def test_heads_that_share_nothing_equally(self, groups: int, tmp_path: Path) -> None:
        file = tiny_models.save("llama", tmp_path) / "config.json"
        changed = json.loads(file.read_text()) | {"num_key_value_heads": groups}
        file.write_text(json.dumps(changed))
        with pytest.raises(ModelError, match=f"{groups} key/value heads|cannot be used"):
            load(str(tmp_path))

    def test_weights_outside_of_the_directory(self, tmp_path: Path) -> None:
        inside = tiny_models.split(
            tiny_models.save("llama", tmp_path / "model"), "../out.safetensors"
        )
        with pytest.raises(ModelError, match=r"out\.safetensors', which its index names, is out"):
            load(str(inside))

    def test_missing(self, tmp_path: Path) -> None:
        with pytest.raises(ModelError, match="no such directory"):
            load(str(tmp_path / "nowhere"))

    def test_no_config(self, tmp_path: Path) -> None:
        with pytest.raises(ModelError, match=r"no config\.json"):
            load(str(tmp_path))

    @pytest.mark.parametrize("kind", [None, "llama", "gpt2"])
    def test_adapters(self, kind: str | None, tmp_path: Path) -> None:
        """By themselves, and beside a model, which would be served without."""
        if kind:
            tiny_models.save(kind, tmp_path)
        (tmp_path / "adapter_config.json").write_text('{"peft_type": "LORA"}')
        with pytest.raises(ModelError, match=r"adapter_config\.json.* merge it into its model"):
            load(str(tmp_path))

    @pytest.mark.parametrize(
        "index", ["{", "[]", "{}", '{"weight_map": []}', '{"weight_map": {"a": 1}}']
    )
    def test_an_index_of_nothing(self, index: str, tmp_path: Path) -> None:
        (tiny_models.save("gpt2", tmp_path) / "model.safetensors").unlink()
        (tmp_path / "model.safetensors.index.json").write_text(index)
        with pytest.raises(ModelError, match="has no weight_map from tensors to files"):
            load(str(tmp_path), device="cpu")

    def test_corrupt_config(self, tmp_path: Path) -> None:
        (tmp_path / "config.json").write_text("{")
        with pytest.raises(ModelError, match=r"config\.json: cannot be read: Expecting"):
            load(str(tmp_path))

    @pytest.mark.parametrize(
        "setting", ["tie_word_embeddings", "attention_bias", "num_hidden_layers"]
    )
    def test_settings_of_another_type(self, setting: str, tmp_path: Path) -> None:
        """What is wrong with one stands on a line of its own."""
        file = tiny_models.save("llama", tmp_path) / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {setting: "2"}))
        with pytest.raises(ModelError, match=rf"cannot be used: .*{setting}.*: .*expected .*'2'"):
            load(str(tmp_path))

    @pytest.mark.parametrize("kind", ["llama", "mixtral", "gpt2"])
    def test_more_layers_than_tensors(self, kind: str, tmp_path: Path) -> None:
        """Whoever began to build them would not come to an end."""
        file = tiny_models.save(kind, tmp_path) / "config.json"
        config = json.loads(file.read_text())
        depth = "n_layer" if "n_layer" in config else "num_hidden_layers"
        file.write_text(json.dumps(config | {depth: 10**9}))
        with pytest.raises(ModelError, match=r"1000000000 layers, but \d+ tensors"):
            load(str(tmp_path))

    @pytest.mark.parametrize(
        ("said", "problem"),
        [
            ({}, "F8_E4M3, and config.json has no quantization_config"),
            ({"quantization_config": {"quant_method": "modelopt"}}, "quant_method 'modelopt'"),
            ({"quantization_config": {"quant_algo": "FP8"}}, "no `quant_method`"),
        ],
    )
    def test_quantised_in_a_way_nobody_knows(
        self, said: dict[str, Any], problem: str, tmp_path: Path
    ) -> None:
        directory = tiny_models.save("llama", tmp_path)
        weights, config = directory / "model.safetensors", directory / "config.json"
        tensors = load_file(weights)
        name = "model.layers.0.mlp.up_proj.weight"
        tensors[name] = tensors[name].to(torch.float8_e4m3fn)
        save_file({**tensors, f"{name}_scale": torch.tensor(0.5)}, weights, {"format": "pt"})
        config.write_text(json.dumps(json.loads(config.read_text()) | said))
        with pytest.raises(ModelError, match=problem):
            load(str(tmp_path))

    def test_a_config_without_end(self, tmp_path: Path) -> None:
        (tmp_path / "config.json").write_text('{"a":' + "[" * 100_000)
        with pytest.raises(ModelError, match=r"config\.json: cannot be read: .*(recursion|flow)"):
            load(str(tmp_path))

    def test_a_config_that_is_a_list(self, tmp_path: Path) -> None:
        (tmp_path / "config.json").write_text("[]")
        with pytest.raises(ModelError, match=r"config\.json: must hold a JSON object"):
            load(str(tmp_path))

    def test_no_weights(self, tmp_path: Path) -> None:
        tiny_models.save("llama", tmp_path)
        (tmp_path / "model.safetensors").unlink()
        with pytest.raises(ModelError, match="weights cannot be loaded"):
            load(str(tmp_path))

    @pytest.mark.parametrize("kind", ["llama", "gpt2"])
    def test_weights_that_cannot_be_opened(self, kind: str, tmp_path: Path) -> None:
        file = tiny_models.save(kind, tmp_path) / "model.safetensors"
        file.unlink()
        file.symlink_to(file)
        with pytest.raises(ModelError, match=r"weights cannot be loaded: .*Too many levels"):
            load(str(tmp_path))

    def test_truncated_weights(self, tmp_path: Path) -> None:
        tiny_models.save("llama", tmp_path)
        file = tmp_path / "model.safetensors"
        file.write_bytes(file.read_bytes()[:1000])
        with pytest.raises(ModelError, match=r"weights cannot be loaded: model\.safetensors: "):
            load(str(tmp_path))

    def test_weights_of_another_model(self, tmp_path: Path) -> None:
        tiny_models.save("llama", tmp_path / "a", num_hidden_layers=1)
        tiny_models.save("llama", tmp_path / "b")
        (tmp_path / "a" / "model.safetensors").rename(tmp_path / "b" / "model.safetensors")
        with pytest.raises(ModelError, match=r"missing keys: model\.layers\.1"):
            load(str(tmp_path / "b"))

    def test_weights_of_another_shape(self, tmp_path: Path) -> None:
        file = tiny_models.save("llama", tmp_path) / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"vocab_size": 9}))
        with pytest.raises(ModelError, match=r"mismatched keys: .*lm_head\.weight.*199.*9"):
            load(str(tmp_path))

    @pytest.mark.parametrize(
        "name", ["pytorch_model.bin", "consolidated.safetensors", "model-Q4_K_M.gguf"]
    )
    def test_weights_in_other_forms_are_not_opened(self, name: str, tmp_path: Path) -> None:
        tiny_models.save("llama", tmp_path)
        (tmp_path / "model.safetensors").rename(tmp_path / name)
        words = rf"cannot be loaded: neither model\.safetensors .* there; what {name} holds is not"
        with pytest.raises(ModelError, match=words):
            load(str(tmp_path))

    def test_a_file(self, tmp_path: Path) -> None:
        file = tmp_path / "model.gguf"
        file.touch()
        with pytest.raises(ModelError, match=r"gguf: a file; a model is a directory"):
            load(str(file))

    @pytest.mark.parametrize("kind", ["llama", "gpt2"])
    def test_a_part_that_git_has_not_fetched(self, kind: str, tmp_path: Path) -> None:
        inside = tiny_models.split(tiny_models.save(kind, tmp_path), "part.safetensors")
        pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"
        (inside / "part.safetensors").write_text(pointer)
        with pytest.raises(
            ModelError, match=r"part\.safetensors is a pointer of Git LFS: `git lfs"
        ):
            load(str(inside))


@pytest.mark.parametrize(
    ("device", "words"),
    [
        ("nonsense", "must be auto, cpu, cuda"),
        ("meta", "must be"),
        ("cuda:99", "CUDA devices here"),
    ],
)
def test_devices_that_are_not_there_are_refused(device: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=f"device {device}: .*{words}"):
        load(str(tmp_path), device=device)


def test_cache_too_small_for_a_block_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="holds no block"):
        runner(tiny_models.save("llama", tmp_path), kv_bytes=1000)
