"""What layers from other nodes leave on this one when their transfer is given up."""

from pathlib import Path

from runtime.node.progress import tell
from runtime.transfer.errors import TransferError
from runtime.transfer.state import FolderState, transfer_folders


def remove_given_up(folder: Path, is_wanted: bool) -> None:
    """Removes the folders of images beside `folder` that no transfer has, and `folder` too unless it is wanted.

    A transfer has its folder until the image is loaded, so what nobody has was given up: by an `up` that was ended, or
    for a disk that was full. It would never be asked for again once there is another image.
    """
    for other in transfer_folders(folder.parent):
        if other == folder and is_wanted:
            continue
        state = FolderState(other)
        given_up = state.holds_files
        try:
            if state.discard() and given_up:
                tell(f"removed {other}: the transfer of that image was given up")
        except (TransferError, OSError) as error:
            tell(f"{other} is left over from a transfer that was given up and cannot be removed: {error}")
