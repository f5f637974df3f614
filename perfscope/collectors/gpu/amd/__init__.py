"""AMD GPUs through the files of the amdgpu and amdkfd drivers."""
