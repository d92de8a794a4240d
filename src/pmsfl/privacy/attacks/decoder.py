"""A decoder from smashed data to images, trained over fresh masks on public images; the victims are new to it."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pmsfl.engine.replay import repeat
from pmsfl.privacy.attacks.base import Attack, Budget
from pmsfl.privacy.metrics import ssim
from pmsfl.privacy.threat import ThreatModel, Transcript

PEAK_LR, RISE = 1e-3, 0.1  # share of the steps in which the rate rises
START, END = 25.0, 250_000.0  # times smaller than the peak
MOST_AT_ONCE = 4096  # images in one forward pass of the clients' bottoms
# Numbers per image up to which every pixel also has a linear view of all of them. Measured at width 64 on 4800 CIFAR
# images and narrow cuts at four bits, 16 observations, at equal CPU time: SSIM 0.657 instead of 0.642 (8×8×8, 30 s) and
# 0.438 instead of 0.424 (8×4×4, 40 s).
FEW = 4096


class Residual(nn.Module):
    """Two 3×3 convolutions around a shortcut, each after a group norm; [B, C, H, W] → the same."""

    def __init__(self, width: int) -> None:
        super().__init__()
        groups = math.gcd(width, 32)
        self.norm1, self.norm2 = nn.GroupNorm(groups, width), nn.GroupNorm(groups, width)
        self.conv1, self.conv2 = nn.Conv2d(width, width, 3, 1, 1), nn.Conv2d(width, width, 3, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        out = self.conv1(F.silu(self.norm1(x)))
        out = self.conv2(F.silu(self.norm2(out)))
        total: Tensor = x + out
        return total


class Decoder(nn.Module):
    """Residual blocks at the resolution of the cut, then 2× steps up to the image's; [B, *smashed] → [B, C, H, W].

    Maps smaller than a quarter of the image are enlarged to that first: blocks on a single pixel have nothing to draw
    on. Where few numbers cross, linear maps of all of them are added: to the enlarged map and to all pixels.
    """

    def __init__(self, smashed: tuple[int, ...], image: tuple[int, ...], width: int, blocks: int) -> None:
        super().__init__()
        self.image = image
        self.spatial = len(smashed) == 3
        quarter = (-(-image[1] // 4), -(-image[2] // 4))
        small = (max(quarter[0], smashed[1]), max(quarter[1], smashed[2])) if self.spatial else quarter
        self.small = small
        numbers = math.prod(smashed)
        few = self.spatial and numbers <= FEW
        grows = few and smashed[1:] != small
        self.spread = nn.Linear(numbers, width * math.prod(small)) if grows else None
        self.enter: nn.Module = (
            nn.Conv2d(smashed[0] + (width if grows else 0), width, 3, 1, 1)
            if self.spatial
            else nn.Linear(numbers, width * math.prod(small))
        )
        self.body = nn.Sequential(*(Residual(width) for _ in range(blocks)))
        self.up = nn.ModuleList()
        while small[0] < image[1]:
            narrow = max(32, width // 2)
            self.up.append(nn.Sequential(nn.Conv2d(width, 4 * narrow, 3, 1, 1), nn.PixelShuffle(2), Residual(narrow)))
            width, small = narrow, (2 * small[0], 2 * small[1])
        self.leave = nn.Sequential(
            nn.GroupNorm(math.gcd(width, 32), width), nn.SiLU(), nn.Conv2d(width, image[0], 3, 1, 1)
        )
        self.linear = nn.Linear(numbers, math.prod(image)) if few else None
        if self.linear is not None:  # the network learns beside it from the start
            nn.init.zeros_(self.linear.weight)
            nn.init.zeros_(self.linear.bias)

    def forward(self, q: Tensor) -> Tensor:
        flat = q.flatten(1)
        if not self.spatial:
            x = self.enter(flat).reshape(len(q), -1, *self.small)
        else:
            maps = q if q.shape[-2:] == self.small else F.interpolate(q, self.small)
            if self.spread is not None:
                maps = torch.cat([maps, self.spread(flat).reshape(len(q), -1, *self.small)], 1)
            x = self.enter(maps)
        x = self.body(x)
        for step in self.up:
            x = step(x)
        if x.shape[-2:] != self.image[1:]:
            x = F.interpolate(x, self.image[1:], mode="bilinear", align_corners=False)
        out = self.leave(x)
        if self.linear is not None:
            out = out + self.linear(flat).reshape(out.shape)
        return torch.sigmoid(out.float())


class Trainer:
    """Trains a decoder against the server's own copy of the clients' half."""

    def __init__(self, threat: ThreatModel, looks: int, batch: int, budget: Budget) -> None:
        """looks: observations averaged per image; batch: images in a client's mini-batch."""
        self.threat, self.looks, self.batch, self.budget = threat, looks, batch, budget
        self.generator = threat.generator()
        assert threat.public is not None
        self.public = threat.public

    def network(self, q: Tensor) -> nn.Module:
        """A new decoder of inputs like q [n, ...]."""
        return Decoder(tuple(q.shape[1:]), self.threat.shape, self.budget.decoder_width, self.budget.decoder_blocks)

    def axes(self, q: Tensor) -> tuple[int, ...]:
        """Along which axes of q a channel's mean is taken."""
        return (0, *range(2, q.ndim)) if q.ndim == 4 else (0,)

    def trained(self) -> tuple[nn.Module, Tensor, Tensor]:
        """The decoder, and the mean and deviation of its input's channels."""
        device = self.threat.device
        _, q = self.sample()
        axes = self.axes(q)
        shift = q.mean(axes, keepdim=True)
        scale = q.std(axes, keepdim=True).clamp_min(1e-5)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.threat.seed)
            decoder = self.network(q)
        decoder.to(device)
        if device.type == "cuda":
            decoder.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._train(decoder, shift, scale)
        return decoder.eval(), shift, scale

    def _train(self, decoder: nn.Module, shift: Tensor, scale: Tensor) -> None:
        """AdamW, its rate rising for a tenth of the steps and falling to nothing."""
        device, steps = self.threat.device, self.budget.decoder_steps
        on_gpu = device.type == "cuda"
        rates = one_cycle(steps).to(device)
        rate, at = torch.zeros((), device=device), torch.zeros(1, dtype=torch.int64, device=device)
        optimiser = torch.optim.AdamW(decoder.parameters(), rate, weight_decay=1e-4, capturable=on_gpu, fused=on_gpu)

        def step() -> None:
            rate.copy_(rates.index_select(0, at)[0])
            at.add_(1)
            x, q = self.sample()
            with self._precision():
                found = decoder(((q - shift) / scale).float())
            loss = (found - x).abs().mean() + (1.0 - ssim(found, x).mean())
            optimiser.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(decoder.parameters(), 1.0)
            optimiser.step()

        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*capturable")  # the first steps are played as they are
            repeat(step, steps, self.generator)

    def _precision(self) -> torch.autocast | nullcontext[None]:
        on_gpu = self.threat.device.type == "cuda"
        return torch.autocast("cuda", torch.bfloat16) if on_gpu else nullcontext()

    def sample(self) -> tuple[Tensor, Tensor]:
        """Public images [n, C, H, W] and what is known of each after `looks` crossings [n, ...], in mini-batches like
        the victims'."""
        groups = max(1, self.budget.decoder_batch // self.batch)
        rows = torch.randint(
            len(self.public), (groups * self.batch,), generator=self.generator, device=self.threat.device
        )
        x = self.public[rows]
        if self.threat.augment is not None:
            x = self.threat.augment(x, self.generator)
        return x.float(), self.combined(self.crossings(x.reshape(groups, self.batch, *x.shape[1:])))

    def crossings(self, grouped: Tensor) -> Iterator[Tensor]:
        """The looks at images [G, B, C, H, W], as many at a time as fit: [n, k, ...]."""
        surface, groups = self.threat.surface, len(grouped)
        at_once = max(1, MOST_AT_ONCE // grouped.shape[:2].numel())
        for left in range(self.looks, 0, -at_once):
            k = min(at_once, left)
            q = surface.crossing(
                grouped.repeat(k, 1, 1, 1, 1), surface.draw(groups * k, self.generator), self.generator
            )
            yield q.reshape(k, groups * self.batch, *q.shape[2:]).transpose(0, 1)

    def combined(self, parts: Iterable[Tensor]) -> Tensor:
        """What the decoder takes, of all looks at n images, in parts [n, k, ...]: their mean [n, ...]."""
        total: Tensor = sum(part.sum(1) for part in parts)  # type: ignore[assignment]
        return total / self.looks


def one_cycle(steps: int) -> Tensor:
    """The rate of every step [steps]: up to its peak and down to next to nothing, both along half a cosine."""
    at, peak = torch.arange(steps, dtype=torch.float64), max(1.0, RISE * steps - 1.0)
    away = torch.where(at < peak, (peak - at) / peak, (at - peak) / max(1.0, steps - 1.0 - peak))  # 0 at the peak
    low = torch.where(at < peak, PEAK_LR / START, PEAK_LR / END)
    return (low + (PEAK_LR - low) * 0.5 * (1.0 + torch.cos(math.pi * away))).float()


class Decode(Attack):
    """From one observation of each image."""

    name = "decoder"
    about = "decoder trained over masks, 1 observation"
    needs = ("public images",)
    looks: ClassVar[int] = 1
    trainer: ClassVar[type[Trainer]] = Trainer

    def why_not(self, view: Transcript, threat: ThreatModel) -> str | None:
        if (linked := min(view.linked, threat.linked)) < self.looks:
            return f"only {linked} observations of each image can be linked"
        if self.looks > 1 and threat.surface.theta is None and not threat.surface.noisy:
            return "every observation is the same: there is nothing to average"
        return super().why_not(view, threat)

    def run(self, view: Transcript, threat: ThreatModel) -> Tensor:
        trainer = self.trainer(threat, self.looks, view.smashed.shape[1], self.budget)
        decoder, shift, scale = trainer.trained()
        q = trainer.combined([view.smashed[:, :, : self.looks].to(shift.dtype).flatten(0, 1)])
        with torch.no_grad():
            parts = [decoder(((part - shift) / scale).float()) for part in torch.split(q, 256)]
        return torch.cat(parts).to(threat.surface.weights.dtype)


class DecodeFew(Decode):
    """From the mean of four."""

    name = "decoder-4"
    about = "decoder trained over masks, mean of 4 observations"
    looks = 4


class DecodeMany(Decode):
    """From the mean of thirty-two."""

    name = "decoder-32"
    about = "decoder trained over masks, mean of 32 observations"
    looks = 32
