"""Where the paper contradicts itself, its own numbers, or what it cites. Every number in here is the paper's own, and
so projected: whoever prints this list prints `paper_values.LABEL` above it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Contradiction:
    """`says` stands at `where`; `but` is what does not go with it, and where that stands."""

    where: str
    says: str
    but: str


STATUS = (
    Contradiction(
        "abstract, contributions, Sec. 6, Conclusion",
        "The method “consistently outperforms”, order 3 is best “on every benchmark we tested”, Fig. order-curve is “a "
        "direct empirical confirmation”.",
        "Sec. 5 says that the red numbers, among them all rows of the method, are projected “and will be replaced once "
        "the runs complete”.",
    ),
    Contradiction(
        "Sec. 5",
        "All baselines are retrained with the same schedule.",
        "In tab. ood-fg the baselines' CUB, Cars, Flowers and FG-avg are red: projected, like the method's own.",
    ),
    Contradiction(
        "Figs. order-curve, scaling, cone, umap, distill-fidelity; tab. cost-accuracy; App. H",
        "Curves, bars, points, step times, hours and “42 of 50” stand in black, as measurements would.",
        "They are of the very runs whose numbers in the text are red.",
    ),
    Contradiction(
        "App. H, fig. case-coco",
        "The columns are headed with the top-1 image of each method.",
        "Its caption calls them stand-ins for the actual predictions, and most of the pictures are empty.",
    ),
    Contradiction(
        "App. G and J, figs. case-rank and case-gram",
        "Captions describe strong entries at (2,7) and (7,2), blocks for head and body, a near-uniform matrix.",
        "The drawings are grids without any entry.",
    ),
)

ORDER = (
    Contradiction(
        "abstract, contribution (ii), Fig. order-scaling",
        "The best order is 3 on every benchmark.",
        "Tab. per-dataset-order names order 2 for STL10, at 82.5 against 82.4.",
    ),
    Contradiction(
        "Sec. 5.2, Fig. order-curve",
        "The sweep is “on the full pretraining recipe”; Sec. 6 calls it “a controlled ablation of the order itself”.",
        "Orders 0 and 1 are the plain CLIP and RankCLIP of tab. main; orders 2 to 5 have teacher, students and fusion.",
    ),
    Contradiction(
        "Sec. 6 (order hierarchy), Sec. 7 (scope)",
        "Going from first to third order is worth 1.14 points, about as much as going from none to first.",
        "Tab. lp-component (b) gives the order 0.6 points and the teacher's parts 0.7.",
    ),
    Contradiction(
        "App. B, order 0",
        "At order 0 the loss is CLIP's up to a constant, distillation terms included.",
        "Distillation terms are no constants of the parameters; with fusion they reach the trunk. The next sentence "
        "asks for the pipeline to be disabled.",
    ),
    Contradiction(
        "Sec. 4.3 (row-centring)",
        "Row-centring “substantially improves optimisation stability”.",
        "The same sentence: softmax is shift-invariant. Loss and gradients are the same with and without it.",
    ),
    Contradiction(
        "Sec. 4.3, App. G",
        "Self-transitions are masked, β_aa = -∞, then rows are centred.",
        "Item a is removed before it could follow itself, so the mask never acts; a mean over -∞ would leave nothing.",
    ),
    Contradiction(
        "App. G, fig. case-beta",
        "β has strong positive entries at (2,7): airport and vehicle.",
        "The text below: conditioned on either item alone, vehicle “scores neutrally” in β.",
    ),
    Contradiction(
        "App. G",
        "A slice of γ “conditioned on a fixed previous pair (a, b)” is an 8×8 matrix.",
        "For a fixed pair γ is a vector of 8 numbers.",
    ),
    Contradiction(
        "tab. hparams (warm-start)",
        "Stages are given for orders 2 and 3.",
        "Orders 4 and 5 are swept too, and have no stage.",
    ),
)

SCHEDULE_AND_COST = (
    Contradiction(
        "Sec. 4.1, tab. hparams",
        "The ranking weights follow the ramp clip((3i-1)/(n-1), 0, 2), a “cosine schedule” inherited from RankCLIP "
        "“unchanged”.",
        "RankCLIP's is clip(3i/(n-1), 0, 2), i from 0; both are clipped lines, no cosines.",
    ),
    Contradiction(
        "Sec. 7 (extended analysis)",
        "Marginal accuracy per GPU-hour “peaks sharply at R = 3 and turns negative at R = 5”.",
        "Tab. cost-accuracy: 0.58 at order 2, 0.46 at order 3, 0.21 at order 5. They are per hour of an eight-GPU "
        "node; per GPU-hour they are an eighth.",
    ),
    Contradiction(
        "abstract, contribution (iii), tab. main",
        "The method is ahead “under matched compute”.",
        "Tab. cost-accuracy: 379 against 301 ms a step, 13.7 against 10.8 h. Matched are epochs and batch.",
    ),
    Contradiction(
        "Sec. 7 (extended analysis)",
        "The gap shrinks monotonically with the order “at the same compute budget”.",
        "Tab. cost-accuracy: hours rise with the order, from 10.8 to 16.0.",
    ),
    Contradiction(
        "tab. cost-accuracy",
        "The caption explains a column Δ Lat, and a last column of marginal gains.",
        "There is no Δ Lat; and the last row divides the whole gain over order 1 by the whole extra time. From order 3 "
        "to 4 the margin itself is negative already, 11.27 against 11.30.",
    ),
    Contradiction(
        "tab. cost-accuracy",
        "A CLIP step takes 301 ms and 64 epochs 10.8 h; at order 3, 379 ms and 13.7 h.",
        "64 epochs of 2.71M pairs in batches of 1024 are 169,000 steps: 14.2 h and 17.8 h.",
    ),
    Contradiction(
        "tab. cost-accuracy",
        "The table is “on the full recipe”; one step time for each order, 379 ms at order 3.",
        "Its orders 0 and 1 are CLIP and RankCLIP, without students and fusion; the accuracy at order 3 is the full "
        "model's. Whichever of the two 379 ms is, the step from order 1 or the overhead over CLIP is another model's.",
    ),
    Contradiction(
        "Sec. 7 (extended analysis)",
        "Each new order adds one transformer-layer history encoder, so cost grows linearly.",
        "Sec. 4.3: orders 2 and 3 have linear projections alone; the layer is for orders from 4 on.",
    ),
    Contradiction(
        "tab. cost-accuracy",
        "Heads have 0.16, 0.61, 1.32 and 2.30M parameters at orders 2 to 5.",
        "With h = 32, embeddings of 512 and two modalities, W_q and W_k of order 2 are 0.066M; the printed counts fit "
        "neither h = 32 nor growth that is linear in the order.",
    ),
    Contradiction(
        "App. B, order 3",
        "A step costs O(B²dh).",
        "That is the heads; the normalisers of full lists, for every row, position and remaining item, are O(B³h).",
    ),
    Contradiction(
        "tab. compute",
        "The whole study takes 72 hours; all baselines are retrained with the same schedule (Sec. 5).",
        "The profile has no run of CyCLIP or ALIP, and CLIP and RankCLIP only as orders 0 and 1 of its sweep. That is "
        "24 h at 32 epochs, where tab. cost-accuracy has 64 epochs a run, 78.9 h together; its scaling has 1M and 2M, "
        "the figure 0.3M as well.",
    ),
    Contradiction(
        "tab. compute",
        "Six component cells on 1M pairs for 32 epochs take 4.0 h.",
        "One such run is 31,000 steps of 0.30 to 0.38 s: 2.6 to 3.3 h, six of them 16 to 20 h.",
    ),
    Contradiction(
        "tab. hparams",
        "Epochs: 16 for the 1M scaling run; 10,000 warm-up steps.",
        "Tab. compute has 32 epochs for scaling. On 0.3M pairs even 32 epochs are 9,400 steps: training would end "
        "inside the warm-up.",
    ),
)

NUMBERS = (
    Contradiction(
        "tab. lp-component (b), abl-3panel, teacher",
        "Ablations on CC3M-1M for 32 epochs end at 9.0 (CLIP), 10.0 (RankCLIP) and 11.3 (full).",
        "Fig. scaling has 6.85, 7.65 and 8.55 at 1M; 11.30 is the full corpus at 64 epochs. Fine-grained averages "
        "(41.8, 44.9) are equal at both scales too.",
    ),
    Contradiction(
        "abstract, Sec. 5",
        "The method “consistently outperforms” all baselines.",
        "Tab. lp-component (a): CLIP is above it on SVHN (50.5 against 50.0), CyCLIP on Pets (44.2 against 43.5), ALIP "
        "on DTD (47.1 against 47.0).",
    ),
    Contradiction(
        "abstract",
        "Relative gains are largest on the fine-grained evaluations.",
        "Over RankCLIP, FG-avg gains 9.2 % (tab. ood-fg) and ImageNet1K 11.2 % (tab. main).",
    ),
    Contradiction(
        "Sec. 5.2, Fig. scaling",
        "The gap to RankCLIP widens with scale, “ruling out a small-scale regularisation explanation”.",
        "In points it does, 0.65 to 1.14; relative to RankCLIP it shrinks from 14.3 % at 0.3M to 11.2 %.",
    ),
    Contradiction(
        "Sec. 5.2",
        "The teacher gives 3.1 points on fine-grained probes against only 0.7 on ImageNet1K, “exactly the asymmetry "
        "our design predicts”.",
        "The 0.7 are zero-shot points of the 1M ablation, the 3.1 probe points of the full run: two protocols and two "
        "corpora.",
    ),
    Contradiction(
        "Sec. 7 (extended analysis)",
        "Of 4.2°, the high-order head closes 1.4°, the teacher 1.3°, “the remaining 1.5° comes from the second-order "
        "ranking term alone”.",
        "Sec. 6 and Fig. cone: 1.4° is CLIP → RankCLIP, 1.5° the whole high-order head, 1.3° the teacher.",
    ),
    Contradiction(
        "Sec. 6 (distillation fidelity)",
        "Four criteria are compared; mean cosines are 0.93, 0.87 and 0.78 for Gram + relational, RKD and MSE.",
        "Fig. distill-fidelity has three curves, whose means are 0.87, 0.80 and 0.71.",
    ),
    Contradiction(
        "App. H",
        "Of captions that CLIP misses at rank 1 but has among the first ten, the method recovers 42 of 50.",
        "By tab. main these are 10.3 % of all captions; 84 % of them alone are 8.7 %, and its R@1 is 4.35 %.",
    ),
    Contradiction(
        "App. J, fig. case-gram",
        "‖G‖_F of the teacher is 1.00, with a distance of 0.31 to it.",
        "A Gram of 196 unit tokens, or with rows of unit length, has a norm of at least 14; what else it was divided "
        "by is not said.",
    ),
)

TEXT = (
    Contradiction(
        "App. F",
        "“No new data sources or new types of supervision beyond” CLIP-style pretraining.",
        "The method distils DINOv3, a teacher that has seen other images under another objective.",
    ),
    Contradiction(
        "Prop. 1",
        "Alignment “is preserved to first order in ε”.",
        "The bound, arcsin(ε·|u|/|v|), is itself of first order in ε: the direction is kept to order zero.",
    ),
    Contradiction(
        "abstract, Sec. 1",
        "The gate “preserves the cross-modal alignment up to first order”.",
        "Prop. 1 assumes a small gate. Nothing in loss or architecture keeps it small.",
    ),
    Contradiction(
        "Sec. 5.3",
        "“The three pillars contribute independently.”",
        "Its rows are cumulative, one order of adding; independence needs each part with and without the others.",
    ),
    Contradiction(
        "Sec. 5.3",
        "Convolutional students end at a higher Gram distance, “see” the appendix on teachers.",
        "That appendix has no Gram distance and no student.",
    ),
    Contradiction(
        "Sec. 6, Fig. distill-fidelity",
        "Criteria are compared after the full 64 epochs.",
        "Tab. compute has the criterion runs at 1M pairs and 32 epochs alone.",
    ),
    Contradiction(
        "Sec. 7, failure mode (i)",
        "On captions of a global category without local descriptors the method equals RankCLIP “at the same order”.",
        "RankCLIP has one order. And zero-shot prompts are such captions, on which the headline gain is claimed.",
    ),
    Contradiction(
        "Sec. 7, failure mode (ii)",
        "Where text features are noisy, the image-only variant, fourth row of tab. lp-component (b), is preferable.",
        "That row also lacks the gate, so it is not the method without its text branch.",
    ),
    Contradiction(
        "App. H",
        "“Successes and failures”; the bottom row is the failure case.",
        "In both rows the method is right.",
    ),
    Contradiction(
        "App. I",
        "CLIP fails by the wrong family entirely, the method within the right one.",
        "Two of the three cases shown for CLIP are A330 for A320, both Airbus, and “A6 sedan” for “A6 saloon”, two "
        "words for one body.",
    ),
)

CONTRADICTIONS: tuple[tuple[str, tuple[Contradiction, ...]], ...] = (
    ("What is measured", STATUS),
    ("The order", ORDER),
    ("Schedule, parameters and cost", SCHEDULE_AND_COST),
    ("Numbers against numbers", NUMBERS),
    ("Text against tables", TEXT),
)
