"""Signs and checks epochs. Only an epoch that a resource manager of this cluster has signed can
stop a resource manager.

A resource manager signs its epoch and sends the proof with its answers and commands. Executors keep
the highest epoch with its proof, and show the proof when they register. So an executor that invents
an epoch cannot stop the cluster. The only effect is that such an executor gets no more slots.
"""

from __future__ import annotations

from collections.abc import Callable

from finegrain.certificates.authority import Authority, authority_keys
from finegrain.certificates.keys import is_signed_by, key_from_pem, signature_of
from finegrain.certificates.statements import signing_manager
from finegrain.rpc.own_certificate import OwnCertificate
from finegrain.v1.identity_pb2 import EpochProof


class EpochProofs:
    """Signs this process's epoch, and checks the proofs of other resource managers.

    Args:
        authority: returns the cluster's authority.
        own: the certificate of this resource manager.
    """

    def __init__(self, authority: Callable[[], Authority], own: OwnCertificate) -> None:
        self._present = authority
        self._own = own
        self._made: EpochProof | None = None
        self._version = -1  # version of the certificate that is in the proof

    def proof_of(self, rm_epoch: int) -> EpochProof:
        """Returns the proof of an epoch with which this process leads."""
        # A new certificate needs a new proof: a proof with a certificate of a dropped authority
        # would prove nothing.
        is_old = self._version != self._own.version
        if self._made is None or self._made.rm_epoch != rm_epoch or is_old:
            own = self._own.credentials
            self._version = self._own.version
            key = key_from_pem(own.key.encode())
            self._made = EpochProof(
                rm_epoch=rm_epoch,
                certificate=own.certificate,
                signature=signature_of(key, self._text(rm_epoch)),
            )
        return self._made

    def proven(self, proof: EpochProof) -> int:
        """Returns the epoch that a proof proves; 0: the proof is not valid."""
        signer = signing_manager(
            proof.certificate.encode(),
            authority_keys(self._present().trusted),
            self._present().cluster,
        )
        if signer is None:
            return 0
        signed = is_signed_by(signer.public_key, proof.signature, self._text(proof.rm_epoch))
        return proof.rm_epoch if signed else 0

    def _text(self, rm_epoch: int) -> bytes:
        return f"finegrain epoch {self._present().cluster} {rm_epoch}".encode()


class EpochClaims:
    """Decides which of the epochs that executors report are believed.

    Args:
        proofs: the object that checks proofs.
        own_epoch: returns the epoch of this process.
    """

    def __init__(self, proofs: EpochProofs, own_epoch: Callable[[], int]) -> None:
        self._proofs = proofs
        self._own_epoch = own_epoch
        self._answered: dict[str, int] = {}
        self._unproven: dict[str, int] = {}

    def registered(self, executor_id: str, claimed: int, proof: EpochProof) -> tuple[int, bool]:
        """Returns two values for a registering executor: the epoch that the executor is believed to
        have seen, and whether the executor claimed more than it can prove.

        Args:
            executor_id: the executor.
            claimed: the epoch in its report.
            proof: the proof that it shows.
        """
        own = self._own_epoch()
        if claimed < own or self._proofs.proven(proof) >= claimed:
            self._unproven.pop(executor_id, None)
            return claimed, False
        self._unproven[executor_id] = claimed
        return own - 1, claimed > own

    def answered(self, executor_id: str) -> None:
        """Records that an executor has received this process's epoch."""
        self._answered[executor_id] = self._own_epoch()

    def reported(self, executor_id: str, claimed: int) -> int | None:
        """Returns the epoch that a reporting executor is believed to have seen.

        None: the executor must register again, and then show its proof.

        Args:
            executor_id: the executor.
            claimed: the epoch in its report.
        """
        own = self._own_epoch()
        if claimed < own:
            return claimed
        if self._unproven.get(executor_id) == claimed:
            return own - 1
        if claimed == own and self._answered.get(executor_id) == own:
            return claimed
        return None
