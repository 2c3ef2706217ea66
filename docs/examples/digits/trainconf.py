"""A small network that reads scikit-learn's 1,797 scans of handwritten digits; a fifth of them is held out."""

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset

from trainhooks import hookimpl

torch.set_num_threads(1)  # fastest for a network as small as this, and the result does not depend on the number of cores

images, labels = load_digits(return_X_y=True)  # 8 by 8 pixels with values from 0 to 16
scans = TensorDataset(torch.tensor(images / 16, dtype=torch.float32).reshape(-1, 1, 8, 8), torch.tensor(labels))
seen, held_out = train_test_split(range(len(scans)), test_size=0.2, stratify=labels, random_state=0)


@hookimpl
def make_model():
    features = nn.Sequential(nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2))
    return nn.Sequential(features, nn.Flatten(), nn.Linear(32 * 4 * 4, 64), nn.ReLU(), nn.Dropout(0.3), nn.Linear(64, 10))


@hookimpl
def make_optimizer(trainer):
    return torch.optim.AdamW(trainer.model.parameters(), lr=5e-3)


@hookimpl
def make_loader(split):
    return DataLoader(Subset(scans, seen if split == "train" else held_out), batch_size=64, shuffle=split == "train")


@hookimpl
def compute_loss(trainer, batch):
    pixels, digits = batch
    logits = trainer.model(pixels)
    return {"loss": nn.functional.cross_entropy(logits, digits), "accuracy": (logits.argmax(1) == digits).float().mean()}


@hookimpl
def predict_step(trainer, batch):
    pixels, _ = batch
    return trainer.model(pixels).argmax(1)


@hookimpl
def after_train(trainer):
    if trainer.outcome.status == "completed":
        pixels, digits = scans[held_out]
        read = torch.cat(trainer.predict("val"))
        wrong = [(n, int(digits[n]), int(read[n])) for n in range(len(digits)) if digits[n] != read[n]]
        trainer.log_table("val/misread", ["scan", "written", "read"], wrong)
        if wrong:
            trainer.log_image("val/misread scans", pixels[[n for n, _, _ in wrong]])
        trainer.log_artifact(__file__, kind="code")
